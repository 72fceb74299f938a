//! That every history ends: the whole graph of states, and what cycles it has.
//!
//! `eventually` of the checker can miss a counterexample where two histories lead to one state, and
//! here there is no measure at hand that each step lowers. That a finite graph has no cycle says
//! the same: there is such a measure, namely how far a state is from its farthest end.
//!
//! Two that lead and do not know of each other may contradict each other for as long as one of
//! them sees nothing new. Such cycles are let pass where in each of their states one of them can
//! find that it no longer leads, and there is no way back from that: its time runs out in the end.

use std::collections::{BTreeMap, VecDeque};

use stateright::Model;

use super::Protocol;
use super::state::State;
use super::steps::Step;

/// What a walk found.
pub(crate) struct Walk {
    /// States, all different.
    pub(crate) states: usize,
    /// Of these, those in which two leaders may go round in circles until one notices.
    pub(crate) circling: usize,
    /// Steps that lead back to where they came from, and no time that runs out ends it.
    pub(crate) endless: Vec<Step>,
}

/// Ways from each state, by the numbers of states.
type Ways = Vec<Vec<(usize, Step)>>;

/// Goes every way there is.
pub(crate) fn walk(protocol: &Protocol) -> Walk {
    let first = protocol.first_state();
    let mut numbers = BTreeMap::from([(first.key, 0)]);
    let mut ways: Vec<Vec<(usize, Step)>> = Vec::new();
    let mut open: VecDeque<State> = VecDeque::from([first]);
    while let Some(state) = open.pop_front() {
        let mut steps = Vec::new();
        protocol.actions(&state, &mut steps);
        let mut to = Vec::new();
        for step in steps {
            let next = protocol.after(&state, &step);
            let new = numbers.len();
            let number = *numbers.entry(next.key).or_insert_with(|| {
                open.push_back(next);
                new
            });
            to.push((number, step));
        }
        ways.push(to);
    }
    judge(&ways)
}

/// Looks at every set of states from each of which there is a way to each other.
fn judge(ways: &Ways) -> Walk {
    let mut found = Walk { states: ways.len(), circling: 0, endless: Vec::new() };
    let sets = sets(ways);
    let mut sizes = vec![0; ways.len()];
    for &set in &sets {
        sizes[set] += 1;
    }
    for (state, to) in ways.iter().enumerate() {
        let inside = |next: usize| sets[next] == sets[state];
        let back = to.iter().filter(|(next, _)| inside(*next));
        let notices = |(_, step): &&(usize, Step)| matches!(step, Step::Notice(_));
        let mut ends = to.iter().filter(notices).map(|(next, _)| !inside(*next));
        if sizes[sets[state]] == 1 && back.clone().next().is_none() {
            continue;
        }
        if ends.next() == Some(true) {
            found.circling += 1;
        } else {
            found.endless.extend(back.map(|(_, step)| step.clone()));
        }
    }
    found
}

/// The set that each state belongs to, by the number of one of its states (Tarjan's way, without
/// recursion).
fn sets(ways: &Ways) -> Vec<usize> {
    let mut set: Vec<Option<usize>> = vec![None; ways.len()];
    let (mut order, mut lowest) = (vec![usize::MAX; ways.len()], vec![usize::MAX; ways.len()]);
    let (mut stack, mut path, mut count) = (vec![0], vec![(0, 0)], 1);
    (order[0], lowest[0]) = (0, 0);
    while let Some((state, next)) = path.last_mut() {
        let state = *state;
        if let Some(&(to, _)) = ways[state].get(*next) {
            *next += 1;
            if order[to] == usize::MAX {
                (order[to], lowest[to]) = (count, count);
                count += 1;
                stack.push(to);
                path.push((to, 0));
            } else if set[to].is_none() {
                lowest[state] = lowest[state].min(order[to]);
            }
            continue;
        }
        path.pop();
        if let Some(&(before, _)) = path.last() {
            lowest[before] = lowest[before].min(lowest[state]);
        }
        if lowest[state] == order[state] {
            while let Some(member) = stack.pop() {
                set[member] = Some(state);
                if member == state {
                    break;
                }
            }
        }
    }
    set.into_iter().map(Option::unwrap).collect()
}
