//! Cluster side: what a controller that started now would make of the cluster, for who only wants
//! to look. Nothing is written.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::view::View;
use crate::api::{GpuNode, GpuPool};
use crate::explain::text::text;
use crate::explain::{Context, Outside, json, standing, wait};
use crate::policy::{Explanation, Millis, Pool, Standing, Waits};
use crate::translate::pod::Admitted;
use crate::translate::restore::restore;
use crate::translate::text::Words;
use crate::translate::{Known, PodFacts, World, diff, plan, pool as settings};

/// Objects of one page of a list.
const PAGE: u32 = 500;

/// What a look at the cluster needs the right to list.
#[derive(Debug, thiserror::Error)]
#[error("failed to list {kind} of the whole cluster")]
pub struct ListError {
    /// The kind, as in a rule of a `ClusterRole`.
    pub kind: &'static str,
    /// Why.
    #[source]
    pub source: kube::Error,
}

/// The cluster at one moment.
pub struct Cluster {
    view: View,
    now: Millis,
}

/// What can be said of a pod.
pub struct Told {
    /// The page.
    pub text: String,
    /// The same for programs.
    pub json: serde_json::Value,
}

/// One pool as a controller that starts now has it.
struct Run {
    world: World,
    pool: Pool,
    known: Known,
}

impl Cluster {
    /// Lists what the controller watches.
    pub async fn look(client: &Client, now: Millis) -> Result<Self, ListError> {
        let (pools, ledgers, nodes, pods) = tokio::try_join!(
            list::<GpuPool>(client, "gpupools"),
            list::<GpuNode>(client, "gpunodes"),
            list::<Node>(client, "nodes"),
            list::<Pod>(client, "pods"),
        )?;
        Ok(Self { view: View::of(&pods, &nodes, ledgers, pools), now })
    }

    /// What can be said of a pod; nothing if there is none of that name.
    pub fn explain(&self, namespace: &str, name: &str) -> Option<Told> {
        let who = format!("{namespace}/{name}");
        let mut pods = self.view.pods.values();
        let pod = pods.find(|pod| pod.who.namespace == namespace && pod.who.name == name)?;
        let run = self.pool_of(pod).and_then(|pool| self.run(&pool));
        let told = run.as_ref().and_then(|run| run.explain(pod));
        Some(told.unwrap_or_else(|| {
            let outside = Self::outside(pod, run.as_ref());
            Told { text: outside.text(&who), json: outside.json(&who) }
        }))
    }

    /// The pool that a pod asks for, or on whose nodes it holds GPUs.
    fn pool_of(&self, pod: &PodFacts) -> Option<String> {
        if pod.is_ours() && self.view.pools.contains_key(&pod.pool) {
            return Some(pod.pool.clone());
        }
        let node = pod.node.as_ref()?;
        let members = self.view.members();
        let there = members.iter().find(|(_, members)| members.nodes.contains_key(node));
        there.map(|(pool, _)| pool.clone())
    }

    fn run(&self, name: &str) -> Option<Run> {
        let object = self.view.pools.get(name)?;
        let mut fresh = Known::default();
        let config = settings::config(&object.spec, |namespace| fresh.ids.tenant(namespace));
        let members = self.view.members();
        let world = self.view.world(name, members.get(name)?, config.ok()?, self.now)?;
        let (mut pool, mut known) = restore(&world).ok()?;
        known.learn(&world, &pool);
        let inputs = diff(&world, &pool, &known);
        known.note(&inputs, &world, &pool);
        pool.step(inputs, self.now);
        Some(Run { world, pool, known })
    }

    fn outside(pod: &PodFacts, run: Option<&Run>) -> Outside {
        if let Some(outcome) = pod.ended {
            return Outside::Ended(outcome);
        }
        if !pod.is_ours() {
            let (our_scheduler, label) = (pod.our_scheduler, pod.shape_label.clone());
            return Outside::NotOurs { our_scheduler, label };
        }
        match (&pod.node, run) {
            (Some(node), _) => Outside::Elsewhere { node: node.clone() },
            (None, _) if pod.deleting => Outside::Deleting,
            (None, None) => Outside::NoSuchPool { pool: pod.pool.clone() },
            (None, Some(run)) if !run.world.shape_agrees(pod) => {
                plan::shape_mismatch(&run.world, pod)
            }
            (None, Some(_)) => Outside::NotSeen,
        }
    }
}

impl Run {
    fn explain(&self, pod: &PodFacts) -> Option<Told> {
        let ids = &self.known.ids;
        let job = ids.job(&pod.who.uid).or_else(|| ids.foreign(&pod.who.uid))?;
        let mut explanation = self.pool.explain(job, self.world.now)?;
        if let Standing::Waits(waits) = &mut explanation.standing {
            as_told(waits, pod);
        }
        let words = Words { pool: &self.pool, known: &self.known, world: &self.world };
        let context = words.context();
        let (mut text, mut json) =
            (text(&explanation, &context), json::json(&explanation, &context));
        let mut remarks = Vec::new();
        remarks.extend(self.unwritten(&explanation, pod));
        remarks.extend(last_word(&explanation, &context, pod));
        if !remarks.is_empty() {
            for remark in &remarks {
                text.push_str(remark);
                text.push('\n');
            }
            json["remarks"] = remarks.into();
        }
        Some(Told { text, json })
    }

    /// Where the ledger does not show that the pod holds GPUs.
    fn unwritten(&self, explanation: &Explanation, pod: &PodFacts) -> Option<String> {
        let name = self.known.ids.node_name(explanation.holds()?.node);
        let facts = name.and_then(|name| self.world.nodes.get(name));
        let ledger = facts.and_then(|facts| self.world.ledger(facts));
        let written = ledger.is_some_and(|l| l.reservations.iter().any(|r| r.uid == pod.who.uid));
        (!written).then(|| {
            "The ledger does not show this yet: the leader writes it at once, if one is at work \
             (kubectl get lease -A)."
                .to_owned()
        })
    }
}

/// When a pod starts at the latest, only the leader knows: it may have been told sooner, and a time
/// that was told stays. What can be reckoned now counts for a pod that was told nothing yet.
fn as_told(waits: &mut Waits, pod: &PodFacts) {
    let told = pod.told_to_wait().and_then(Admitted::latest_start);
    if waits.bound.latest_start.is_some() && told.is_some() {
        waits.bound.latest_start = told;
    }
}

/// The leader's word, where it is another one: back-offs are in no ledger, and why no time can be
/// given, or can again, may not be written yet.
fn last_word(explanation: &Explanation, context: &Context<'_>, pod: &PodFacts) -> Option<String> {
    let Admitted { reason, message, .. } = pod.told_to_wait()?;
    let own = wait::condition(explanation, context);
    let (own_reason, own_message) = own.unwrap_or_else(|| standing(explanation, context));
    let same = reason == own_reason && wait::told(message) == wait::told(&own_message);
    (!same).then(|| format!("The leader's last word on the pod, {reason}: {message}"))
}

async fn list<K>(client: &Client, kind: &'static str) -> Result<Vec<K>, ListError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&params).await.map_err(|source| ListError { kind, source })?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
