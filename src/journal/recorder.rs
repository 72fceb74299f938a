//! Pure: records as they come into being, in a bounded amount of memory.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Kind, Record, VERSION};
use crate::explain::{NameTable, Names};
use crate::policy::{Fits, Input, Job, Millis, Pool, Promises, State, Stepped};

/// How long a pool whose state alone is too large is not tried again.
const REST: Millis = Millis::from_secs(60);

/// Keeps the newest records of one pool: those since one of its last states, so that they can be
/// replayed. It holds at most as many bytes as it was given.
#[derive(Clone, Debug)]
pub struct Recorder {
    pool: String,
    most_bytes: usize,
    segments: VecDeque<Segment>,
    seq: u64,
    /// The latest time of a step in which nothing happened. It is not written: the next step does
    /// what it did, unless the clock steps back.
    idle_at: Option<Millis>,
    rests_until: Option<Millis>,
}

/// Records from one state on.
#[derive(Clone, Debug, Default)]
struct Segment {
    lines: Vec<Arc<str>>,
    bytes: usize,
}

/// The records that there are, and the state that they lead to.
#[derive(Clone, Debug)]
pub struct Snapshot {
    lines: Vec<Arc<str>>,
    state: Record,
}

impl Snapshot {
    /// The records, each with the end of its line. The state is written when its turn comes, so
    /// that whoever passes the lines on holds one of them at a time.
    pub fn into_lines(self) -> impl Iterator<Item = String> {
        let state = std::iter::once_with(move || self.state.line() + "\n");
        self.lines.into_iter().map(|line| format!("{line}\n")).chain(state)
    }
}

impl Recorder {
    /// Keeps at most so many bytes of records of the pool with this name; none if that is zero.
    pub fn new(pool: &str, most_bytes: usize) -> Self {
        Self {
            pool: pool.to_owned(),
            most_bytes,
            segments: VecDeque::new(),
            seq: 0,
            idle_at: None,
            rests_until: None,
        }
    }

    /// Keeps everything.
    pub fn unbounded(pool: &str) -> Self {
        Self::new(pool, usize::MAX)
    }

    /// Steps the policy, tells who waits, and keeps what came of it.
    pub fn step(
        &mut self,
        pool: &mut Pool,
        promises: &mut Promises,
        inputs: Vec<Input>,
        now: Millis,
        names: &dyn Names,
    ) -> Stepped {
        let begun = self.begins(pool, promises, now, names);
        let stepped = promises.step(pool, &inputs, now);
        if !begun {
            self.seq += 1;
        } else if stepped.noted {
            if self.idle_at > Some(now) {
                self.write_idle();
            }
            self.idle_at = None;
            let table = told_of(&inputs, names);
            let Stepped { decisions, moved, .. } = stepped.clone();
            self.write_step(Kind::Step { inputs, decisions, moved }, now, table);
        } else {
            self.idle_at = self.idle_at.max(Some(now));
        }
        stepped
    }

    /// The records that are kept, and the pool's state now with what its waiting jobs were told.
    pub fn snapshot(
        &mut self,
        pool: &Pool,
        promises: &Promises,
        now: Millis,
        names: &dyn Names,
    ) -> Snapshot {
        self.write_idle();
        let lines = self.segments.iter().flat_map(|segment| segment.lines.iter().cloned());
        Snapshot { lines: lines.collect(), state: self.state(pool, promises, now, names) }
    }

    /// The bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Makes room for a step, which needs a state before it. Says whether there is.
    fn begins(&mut self, pool: &Pool, promises: &Promises, now: Millis, names: &dyn Names) -> bool {
        let half = self.most_bytes / 2;
        if self.segments.back().is_some_and(|segment| segment.bytes < half) {
            return true;
        }
        if half == 0 || self.rests_until.is_some_and(|until| now < until) {
            return false;
        }
        self.write_idle();
        let line = self.state(pool, promises, now, names).line();
        if line.len() >= half {
            // Half of the room for states alone would leave none for what happens.
            self.segments.clear();
            self.rests_until = Some(now + REST);
            return false;
        }
        self.rests_until = None;
        self.segments.push_back(Segment::default());
        self.push(&line);
        true
    }

    /// Numbers go on over what is not kept, so that a gap is seen.
    fn state(&self, pool: &Pool, promises: &Promises, now: Millis, names: &dyn Names) -> Record {
        let state = State { told: Some(promises.told()), ..pool.state() };
        Record {
            v: VERSION,
            pool: self.pool.clone(),
            seq: self.seq,
            now_ms: now.0,
            names: all_named(&state, names),
            is: Kind::State(Box::new(state)),
        }
    }

    fn write_idle(&mut self) {
        if let Some(at) = self.idle_at.take().filter(|_| !self.segments.is_empty()) {
            let nothing =
                Kind::Step { inputs: Vec::new(), decisions: Vec::new(), moved: Vec::new() };
            self.write_step(nothing, at, NameTable::default());
        }
    }

    fn write_step(&mut self, is: Kind, now: Millis, names: NameTable) {
        self.seq += 1;
        let (v, pool) = (VERSION, self.pool.clone());
        let record = Record { v, pool, seq: self.seq, now_ms: now.0, names, is };
        self.push(&record.line());
    }

    fn push(&mut self, line: &str) {
        let Some(segment) = self.segments.back_mut() else { return };
        segment.bytes += line.len() + 1;
        segment.lines.push(line.into());
        while self.bytes() > self.most_bytes {
            self.segments.pop_front();
        }
    }
}

/// The names of whoever is told of for the first time, or may be.
fn told_of(inputs: &[Input], names: &dyn Names) -> NameTable {
    let mut table = NameTable::default();
    for input in inputs {
        match input {
            Input::Queued(job) => name_job(job, names, &mut table),
            Input::Foreign { job, .. } => {
                table.pods.extend(names.job(*job).map(|name| (*job, name)));
            }
            Input::NodeChanged { node, .. } => {
                table.nodes.extend(names.node(*node).map(|name| (*node, name)));
            }
            _ => {}
        }
    }
    table
}

fn all_named(state: &State, names: &dyn Names) -> NameTable {
    let mut table = NameTable::default();
    let waiting = state.waiting.iter().map(|queued| &queued.waiting.job);
    for job in waiting.chain(state.placed.iter().map(|placed| &placed.waiting.job)) {
        name_job(job, names, &mut table);
    }
    for (&id, node) in &state.nodes {
        table.nodes.extend(names.node(id).map(|name| (id, name)));
        let gated = node.gate().map(|gate| gate.job);
        for job in node.holdings.keys().copied().chain(gated) {
            table.pods.extend(names.job(job).map(|name| (job, name)));
        }
    }
    table
}

fn name_job(job: &Job, names: &dyn Names, table: &mut NameTable) {
    table.pods.extend(names.job(job.id).map(|name| (job.id, name)));
    table.namespaces.extend(names.tenant(job.tenant).map(|name| (job.tenant, name)));
    if let Fits::Only(nodes) = &job.fits {
        table.nodes.extend(nodes.iter().filter_map(|&node| Some((node, names.node(node)?))));
    }
}
