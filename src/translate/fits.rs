//! Pure: which nodes a pod may be placed on, by selector, required affinity, taints.
//!
//! kube-scheduler decides this for good; here it is read so that no gate closes for a pod that
//! could not use the node. What depends on other pods (affinity between pods, spreading, volumes)
//! is left to kube-scheduler: a reservation that it refuses is given up in time.

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

use super::NodeFacts;

/// Taints that say what [`NodeFacts::takes_work`] says already: a pod waits for the node to come
/// back, it does not fail to match it.
const LIFECYCLE_TAINTS: [&str; 4] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/network-unavailable",
];

/// What a pod asks of a node. Pods of one template have equal placements.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Placement {
    selector: Vec<(String, String)>,
    /// Terms of required node affinity, of which one must hold; `None` if there is none.
    affinity: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

// Every part compares reflexively; none holds a floating-point number.
impl Eq for Placement {}

impl Placement {
    /// Reads it from a pod's spec.
    pub fn read(spec: &PodSpec) -> Self {
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|affinity| affinity.node_affinity.as_ref())
            .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref())
            .map(|required| required.node_selector_terms.clone());
        let selector = spec.node_selector.iter().flatten();
        Self {
            selector: selector.map(|(key, value)| (key.clone(), value.clone())).collect(),
            affinity,
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    /// Whether a pod that asks for this may be placed on the node.
    pub fn fits(&self, node: &NodeFacts) -> bool {
        self.selected(node) && self.tolerated(node)
    }

    fn selected(&self, node: &NodeFacts) -> bool {
        self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
            && self.affinity.as_ref().is_none_or(|terms| terms.iter().any(|t| term(t, node)))
    }

    fn tolerated(&self, node: &NodeFacts) -> bool {
        node.taints
            .iter()
            .filter(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute")
            .filter(|taint| !LIFECYCLE_TAINTS.contains(&taint.key.as_str()))
            .all(|taint| self.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    }
}

/// A term without requirements matches nothing, as in kube-scheduler.
fn term(term: &NodeSelectorTerm, node: &NodeFacts) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|wanted| requirement(wanted, label(&wanted.key)))
        && fields.iter().all(|wanted| requirement(wanted, field(&wanted.key)))
}

fn requirement(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let among = |value: &str| values.iter().any(|allowed| allowed == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = || values.first().and_then(|text| number(text));
    match wanted.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound()).is_some_and(|(has, than)| has > than),
        "Lt" => value.and_then(number).zip(bound()).is_some_and(|(has, than)| has < than),
        _ => false,
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let same = |wanted: Option<&str>, has: &str| wanted.is_none_or(|w| w.is_empty() || w == has);
    let effect = same(toleration.effect.as_deref(), &taint.effect);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = match toleration.key.as_deref() {
        None | Some("") => exists,
        Some(key) => key == taint.key,
    };
    let value = exists
        || toleration.value.as_deref().unwrap_or_default()
            == taint.value.as_deref().unwrap_or_default();
    effect && key && value
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{Value, from_value, json};

    use super::*;
    use crate::translate::node::tests::node;

    fn placement(spec: Value) -> Placement {
        let mut spec = spec;
        spec["containers"] = json!([]);
        Placement::read(&from_value(spec).unwrap())
    }

    fn affinity(key: &str, operator: &str, values: &[&str]) -> Value {
        let expression = json!({"key": key, "operator": operator, "values": values});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
    }

    #[test]
    fn a_pod_fits_where_kube_scheduler_would_let_it() {
        let plain = node("n1", json!({}));
        let tainted = node(
            "n1",
            json!({"spec": {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]}}),
        );
        let tolerate = |rest: Value| {
            let mut toleration = rest;
            toleration["effect"] = json!("NoSchedule");
            json!({"tolerations": [toleration]})
        };
        let cases = [
            ("nothing asked", json!({}), &plain, true),
            ("selector holds", json!({"nodeSelector": {"zone": "a"}}), &plain, true),
            ("selector does not hold", json!({"nodeSelector": {"zone": "b"}}), &plain, false),
            ("In", affinity("zone", "In", &["b", "a"]), &plain, true),
            ("In, absent", affinity("rack", "In", &["a"]), &plain, false),
            ("NotIn, absent", affinity("rack", "NotIn", &["a"]), &plain, true),
            ("NotIn", affinity("zone", "NotIn", &["a"]), &plain, false),
            ("Exists", affinity("zone", "Exists", &[]), &plain, true),
            ("DoesNotExist", affinity("zone", "DoesNotExist", &[]), &plain, false),
            ("Gt", affinity("cores", "Gt", &["15"]), &plain, true),
            ("Lt", affinity("cores", "Lt", &["16"]), &plain, false),
            ("unknown operator", affinity("zone", "Like", &["a"]), &plain, false),
            ("taint", json!({}), &tainted, false),
            ("Equal", tolerate(json!({"key": "team", "value": "red"})), &tainted, true),
            ("wrong value", tolerate(json!({"key": "team", "value": "blue"})), &tainted, false),
            ("Exists key", tolerate(json!({"key": "team", "operator": "Exists"})), &tainted, true),
            ("Exists all", tolerate(json!({"operator": "Exists"})), &tainted, true),
        ];
        for (name, spec, node, fits) in cases {
            assert_eq!(placement(spec).fits(node), fits, "{name}");
        }
    }

    #[test]
    fn a_term_may_name_the_node_and_an_empty_one_matches_nothing() {
        let by_name = |name: &str| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
            placement(json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [field]}]}}}}))
        };
        assert!(by_name("n1").fits(&node("n1", json!({}))));
        assert!(!by_name("n2").fits(&node("n1", json!({}))));
        let empty = placement(json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}}));
        assert!(!empty.fits(&node("n1", json!({}))));
    }

    #[test]
    fn a_node_that_is_away_still_matches() {
        let away = node(
            "n1",
            json!({"spec": {"taints": [
                {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}}),
        );
        assert!(placement(json!({})).fits(&away));
    }
}
