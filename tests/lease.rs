//! The lease: one leader, a short gap after a crash, and no belief that outlives the facts.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use sluice::clock::Clock;
use sluice::controller::lease::{Leadership, Params, campaign};
use sluice::policy::Millis;
use support::apiserver::{ApiServer, Fault};
use support::ledger::{START, clock};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/sluice/leases/leader";

/// A replica that campaigns.
struct Replica {
    leadership: Leadership,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(server: &ApiServer, identity: &str, clock: Clock) -> Self {
        let params = params(identity);
        let (campaign, leadership) = campaign(server.client(), params, clock);
        let stop = CancellationToken::new();
        Self { leadership, task: tokio::spawn(campaign.run(stop.clone())), stop }
    }

    /// Waits until it leads, and says how long that took.
    async fn wins(&mut self) -> Duration {
        let start = Instant::now();
        self.leadership.acquired().await.expect("a campaign");
        start.elapsed()
    }

    /// As SIGKILL does: nothing is given back.
    fn crash(&self) {
        self.task.abort();
    }

    async fn ends(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }
}

fn params(identity: &str) -> Params {
    Params::new("sluice".to_owned(), "leader".to_owned(), identity.to_owned())
}

fn holder(server: &ApiServer) -> Value {
    server.get(PATH).expect("a lease")["spec"]["holderIdentity"].clone()
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_the_second_follows_at_once_when_it_ends() {
    let server = ApiServer::default();
    let mut first = Replica::start(&server, "first", clock());
    assert_eq!(first.wins().await, Duration::ZERO);
    let mut second = Replica::start(&server, "second", clock());
    sleep(Duration::from_secs(60)).await;
    assert!(first.leadership.holds() && !second.leadership.holds());
    assert_eq!(holder(&server), "first");

    let term = first.leadership.term().unwrap().number;
    let mut watched = first.leadership.clone();
    first.ends().await;
    watched.lost(term).await;
    assert!(second.wins().await <= params("").period, "a lease given back is not waited for");
    assert_eq!(holder(&server), "second");
    assert!(second.leadership.term().unwrap().number > term);
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_another_leads_when_the_lease_has_run_out_and_not_before() {
    let server = ApiServer::default();
    let mut first = Replica::start(&server, "first", clock());
    first.wins().await;
    // Wall clocks far apart change nothing: time is counted where it is watched.
    let ahead = Clock::manual(START + Millis::from_secs(86_400));
    let mut second = Replica::start(&server, "second", ahead);
    sleep(Duration::from_secs(30)).await;
    let mut believes = first.leadership.clone();
    let term = believes.term().unwrap();
    first.crash();
    let crashed = Instant::now();
    let (waited, ()) = tokio::join!(second.wins(), async {
        believes.lost(term.number).await;
        assert!(crashed.elapsed() <= params("").trust);
    });
    let timing = params("");
    assert!(waited + timing.period >= timing.duration, "{waited:?}");
    assert!(waited <= timing.duration + timing.period, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_api_server_stops_believing_before_another_can_lead() {
    let server = ApiServer::default();
    let mut first = Replica::start(&server, "first", clock());
    first.wins().await;
    sleep(Duration::from_millis(500)).await;
    let term = first.leadership.term().unwrap();
    for _ in 0..20 {
        server.fault(&format!("PUT {PATH}"), Fault::Hang(false));
        server.fault(&format!("GET {PATH}"), Fault::Hang(false));
    }
    first.leadership.lost(term.number).await;
    assert!(!first.leadership.holds());
    assert_eq!(Instant::now(), term.until);
    assert!(params("").trust < params("").duration);
}

#[tokio::test(start_paused = true)]
async fn one_lost_answer_does_not_end_a_term() {
    let server = ApiServer::default();
    let mut first = Replica::start(&server, "first", clock());
    first.wins().await;
    let mut watched = first.leadership.clone();
    let term = watched.term().unwrap().number;
    let lost = tokio::spawn(async move { watched.lost(term).await });
    for fault in [
        Fault::LoseReply,
        Fault::LoseCall,
        Fault::Hang(true),
        Fault::Refuse(500, "InternalError", "etcd changes its leader"),
        // Somebody looks after labels.
        Fault::Before(Box::new(|server| {
            server.change(PATH, |lease| lease["metadata"]["labels"] = json!({"a": "b"}));
        })),
    ] {
        server.fault(&format!("PUT {PATH}"), fault);
        sleep(Duration::from_secs(10)).await;
        assert!(first.leadership.holds() && !lost.is_finished());
        assert_eq!(holder(&server), "first");
    }
    assert_eq!(server.get(PATH).unwrap()["metadata"]["labels"]["a"], "b", "and keeps them");
    lost.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_away_ends_the_term_and_one_removed_is_made_again() {
    let server = ApiServer::default();
    let mut first = Replica::start(&server, "first", clock());
    first.wins().await;
    let term = first.leadership.term().unwrap().number;
    server.change(PATH, |lease| lease["spec"]["holderIdentity"] = json!("somebody"));
    first.leadership.lost(term).await;
    assert_eq!(holder(&server), "somebody", "it is not fought over");

    server.remove(PATH);
    first.wins().await;
    assert_eq!(holder(&server), "first");
}

#[tokio::test(start_paused = true)]
async fn the_next_container_of_the_same_pod_leads_at_once() {
    let server = ApiServer::default();
    let mut first = Replica::start(&server, "pod-1", clock());
    first.wins().await;
    sleep(Duration::from_secs(10)).await;
    first.crash();
    let mut next = Replica::start(&server, "pod-1", clock());
    assert_eq!(next.wins().await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn of_many_at_most_one_leads_and_soon_one_does() {
    let server = ApiServer::default();
    let start = |number: i32| Replica::start(&server, &format!("r{number}"), clock());
    let mut replicas: Vec<Replica> = (0..5).map(start).collect();
    let mut ending = Vec::new();
    let (mut led, mut silent_ms) = (0, 0);
    while led < 40 {
        sleep(Duration::from_millis(100)).await;
        let holds = |replica: &Replica| replica.leadership.holds();
        let all = replicas.iter().chain(&ending);
        assert!(all.filter(|replica| holds(replica)).count() <= 1, "after {led} leaders");
        silent_ms += 100;
        let limit = params("").duration + params("").period;
        assert!(silent_ms <= limit.as_millis(), "nobody leads");
        if let Some(leader) = replicas.iter().position(holds) {
            let leader = replicas.remove(leader);
            // Every other one crashes; a crashed one believes until its time is over.
            if led % 2 == 0 {
                leader.crash();
            } else {
                leader.stop.cancel();
            }
            ending.push(leader);
            replicas.push(start(100 + led));
            (led, silent_ms) = (led + 1, 0);
        }
    }
}
