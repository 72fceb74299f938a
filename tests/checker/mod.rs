//! How a model is explored, and a spoilt one caught: what the model of the rule and that of the
//! protocol have in common.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Threads of the checker: the long runs are meant for a machine of two cores.
const THREADS: usize = 2;

/// What is explored, and how many different states it has.
pub(crate) struct Run<M> {
    pub(crate) name: &'static str,
    pub(crate) model: M,
    pub(crate) states: usize,
}

/// Explores each run whole: no counterexample, every wanted state reached, what `also` asks of the
/// model with so many states, and as many of them as are written down. All figures are said, and
/// all that differ before the first one fails.
#[expect(clippy::disallowed_methods, reason = "how long a run took is told, never judged")]
pub(crate) fn explore<M>(runs: Vec<Run<M>>, also: impl Fn(&str, &M, usize, Instant))
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let mut differ = Vec::new();
    for Run { name, model, states } in runs {
        let start = Instant::now();
        let checker = model.checker().threads(THREADS).spawn_dfs().join();
        let found = checker.unique_state_count();
        let (steps, depth) = (checker.state_count(), checker.max_depth());
        let took = start.elapsed();
        say(&format!("{name}: {found} states, {steps} steps, depth {depth}, {took:?}"));
        for property in checker.model().properties() {
            let wanted = property.expectation == Expectation::Sometimes;
            match checker.discovery(property.name) {
                Some(path) if !wanted => {
                    say(&format!("counterexample to: {}", property.name));
                    for (state, action) in path.into_vec() {
                        say(&format!("  {state:?}\n    then {action:?}"));
                    }
                }
                None if wanted => say(&format!("never reached: {}", property.name)),
                _ => {}
            }
        }
        checker.assert_properties();
        also(name, checker.model(), found, start);
        if found != states {
            differ.push(format!("{name}: {found} states, not {states}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// A spoilt model has a counterexample to the property that is meant to catch it.
pub(crate) fn caught<M>(model: M, mutant: impl Debug, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    assert!(checker.discovery(property).is_some(), "{mutant:?} is not caught by: {property}");
}

/// What a run found is its result, to be read with `--nocapture`.
#[expect(clippy::print_stderr, reason = "a report to whoever runs the long checks")]
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}
