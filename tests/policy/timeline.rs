//! Timelines as tables, so that a test reads like the history that it describes.
//!
//! Each line is `second | what happens | what is decided`, the last part in the order of the
//! decisions. Everything that happens in a line happens at one instant. Jobs get their numbers in
//! the order in which they are first named; `s1..s8` stands for eight names.
//!
//! | happens | meaning |
//! |---|---|
//! | `small s1..s3 limit=9 prio=1 on=n0,n2 tenant=4 created=7` | jobs arrive |
//! | `wide W gpus=4` | the same for a wide small of four GPUs |
//! | `large A` | the same for a large |
//! | `done a`, `failed a`, `cancelled a` | its GPUs are free again |
//! | `withdraw a` | it is deleted while it waits |
//! | `bind a`, `start a end=9`, `refuse a`, `vanish a` | bound, running, binding refused, gone |
//! | `holds a gpus=0,3` | what the node really gave it |
//! | `foreign f n0 count=2 gpus=0,1 end=9` | a job that went round the rule |
//! | `node n0 gpus=8 bad=1,2 cordoned` | a node appears or changes |
//! | `gone n0` | a node is gone |
//! | `set backfill=on turn=40 …` | the settings change |
//! | `tick` | time passes |
//!
//! Whoever is admitted is bound and started at once, unless the timeline says [`Timeline::slow`].
//! After every step the pool is examined: invariants, no refused commit, nothing left undecided,
//! no wake-up in the past, and a pool restored from the ledger decides the same.

use std::collections::{BTreeMap, BTreeSet};

use sluice::explain::NameTable;
use sluice::journal::Recorder;
use sluice::policy::invariants::check_node;
use sluice::policy::{
    BoundMoved, Config, Decision, Fits, GpuSet, Input, Job, JobId, Kind, Millis, NodeId, NodeSpec,
    Outcome, Phase, Pool, Promises, Shape, TenantId, Wait,
};

use super::records::replays;

/// A pool, its names, its records, and how far its history has come.
pub(crate) struct Timeline {
    pub(crate) pool: Pool,
    pub(crate) now: Millis,
    /// What the last line told the pool, and what was decided.
    pub(crate) last: (Vec<Input>, Vec<Decision>),
    names: BTreeMap<String, JobId>,
    recorder: Recorder,
    pub(crate) promises: Promises,
    /// Who was told a later time since somebody last asked.
    pub(crate) moved: Vec<BoundMoved>,
    slow: bool,
    /// The world itself broke an invariant: from there on it cannot be required to hold.
    broken_by_the_world: bool,
}

/// Plays a table on so many eight-GPU nodes.
pub(crate) fn play(config: &Config, nodes: u32, table: &str) -> Timeline {
    let mut timeline = Timeline::new(config, nodes);
    timeline.play(table);
    timeline
}

/// Settings with the limits that bounds need, in seconds.
pub(crate) fn limits(small: u64, large: u64) -> Config {
    Config {
        small_limit: Some(Millis::from_secs(small)),
        large_limit: Some(Millis::from_secs(large)),
        ..Config::default()
    }
}

impl Timeline {
    pub(crate) fn new(config: &Config, nodes: u32) -> Self {
        let mut pool = Pool::new(config.clone()).unwrap();
        let gpus = GpuSet::first(config.gpus_per_node);
        let spec = NodeSpec { gpus, healthy: gpus, schedulable: true };
        let appear = |n| Input::NodeChanged { node: NodeId(n), spec };
        assert_eq!(pool.step((0..nodes).map(appear).collect(), Millis(0)), []);
        Self {
            pool,
            now: Millis(0),
            last: (Vec::new(), Vec::new()),
            names: BTreeMap::new(),
            recorder: Recorder::unbounded("default"),
            promises: Promises::default(),
            moved: Vec::new(),
            slow: false,
            broken_by_the_world: false,
        }
    }

    /// Admitted jobs are bound and started only where the table says so.
    pub(crate) fn slow(config: &Config, nodes: u32) -> Self {
        Self { slow: true, ..Self::new(config, nodes) }
    }

    pub(crate) fn play(&mut self, table: &str) -> &mut Self {
        for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let parts: Vec<&str> = line.split('|').map(str::trim).collect();
            let [second, events, expected] = parts[..] else { panic!("three columns: {line}") };
            let at = seconds(second);
            self.pass_to(at);
            self.now = at;
            let events = events.split(';');
            let inputs: Vec<Input> = events.flat_map(|event| self.inputs(event.trim())).collect();
            let decided = self.step(inputs.clone());
            let expected: Vec<&str> =
                expected.split(';').map(str::trim).filter(|e| !e.is_empty()).collect();
            assert_eq!(self.render(&decided), expected, "at {line}");
            self.start_admitted(&decided);
            self.last = (inputs, decided);
        }
        replays(&self.records());
        self
    }

    /// What was told and decided since the last restart, as records.
    pub(crate) fn records(&mut self) -> String {
        let names = self.table();
        self.recorder.snapshot(&self.pool, &self.promises, self.now, &names).into_lines().collect()
    }

    /// The names as a controller knows them.
    pub(crate) fn table(&self) -> NameTable {
        NameTable {
            pods: self.names.iter().map(|(name, &job)| (job, format!("team/{name}"))).collect(),
            nodes: self.pool.nodes().keys().map(|&id| (id, place(id))).collect(),
            namespaces: (0..9).map(|n| (TenantId(n), format!("team-{n}"))).collect(),
        }
    }

    /// Wake-ups before the next line must find nothing to decide: the table would have said so.
    fn pass_to(&mut self, at: Millis) {
        while let Some(wakeup) = self.pool.next_wakeup(self.now).filter(|&due| due < at) {
            assert!(wakeup > self.now, "the wake-up spins at {wakeup}");
            self.now = wakeup;
            let decided = self.step(Vec::new());
            assert!(
                decided.is_empty(),
                "not in the table, at {wakeup}: {:?}",
                self.render(&decided)
            );
        }
    }

    fn start_admitted(&mut self, decided: &[Decision]) {
        if self.slow {
            return;
        }
        let mut inputs = Vec::new();
        for decision in decided {
            if let Decision::Reserved { job, .. } = *decision {
                let limit = self.pool.job(job).and_then(|job| job.limit);
                let latest_end = limit.map(|limit| self.now + limit);
                inputs.extend([Input::Bound { job }, Input::Started { job, latest_end }]);
            }
        }
        let decided = self.step(inputs);
        assert!(decided.is_empty(), "binding changes nothing: {:?}", self.render(&decided));
    }

    fn step(&mut self, inputs: Vec<Input>) -> Vec<Decision> {
        let after_a_restart = self.restored(inputs.clone());
        let names = self.table();
        let (pool, promises) = (&mut self.pool, &mut self.promises);
        let stepped = self.recorder.step(pool, promises, inputs, self.now, &names);
        let decided = stepped.decisions;
        self.moved.extend(stepped.moved);
        if let Some(restored) = after_a_restart {
            assert_eq!(restored, decided, "a restored pool decides otherwise at {}", self.now);
        }
        self.broken_by_the_world |=
            decided.iter().any(|decision| matches!(decision, Decision::Observed { .. }));
        if !self.broken_by_the_world {
            examine(&self.pool, &decided);
        }
        assert_eq!(self.pool.clone().step(Vec::new(), self.now), [], "undecided at {}", self.now);
        let wakeup = self.pool.next_wakeup(self.now);
        assert!(wakeup.is_none_or(|due| due > self.now), "the wake-up spins at {}", self.now);
        decided
    }

    /// What a controller that starts now decides; back-offs are not in the ledger, so not then.
    fn restored(&self, mut inputs: Vec<Input>) -> Option<Vec<Decision>> {
        let waiting = || [Shape::Small, Shape::Large].into_iter().flat_map(|s| self.pool.queue(s));
        if waiting().any(|waiting| waiting.attempts > 0) {
            return None;
        }
        let named: Vec<JobId> = inputs.iter().filter_map(queued).collect();
        let known = waiting().filter(|waiting| !named.contains(&waiting.job.id));
        inputs.splice(0..0, known.map(|waiting| Input::Queued(Box::new(waiting.job.clone()))));
        // A deletion takes effect before an arrival; here the arrival was earlier.
        let withdrawn = |input: &Input| match input {
            Input::Withdrawn { job } => Some(*job),
            _ => None,
        };
        let gone: Vec<JobId> = inputs.iter().filter_map(withdrawn).collect();
        inputs.retain(|input| queued(input).is_none_or(|job| !gone.contains(&job)));
        Some(restore(&self.pool).step(inputs, self.now))
    }

    /// Restarts the controller: everything but the ledger and the waiting pods is lost.
    pub(crate) fn restart(&mut self) -> &mut Self {
        let waiting: Vec<Input> = [Shape::Small, Shape::Large]
            .into_iter()
            .flat_map(|shape| self.pool.queue(shape))
            .map(|waiting| Input::Queued(Box::new(waiting.job.clone())))
            .collect();
        self.replace(restore(&self.pool));
        assert_eq!(self.pool.step(waiting, self.now), [], "a restart decides nothing");
        self
    }

    /// Another process goes on, with what it knows.
    pub(crate) fn replace(&mut self, pool: Pool) {
        self.pool = pool;
        self.recorder = Recorder::unbounded("default");
        self.promises = Promises::default();
    }

    pub(crate) fn id(&mut self, name: &str) -> JobId {
        let next = JobId(self.names.len() as u64 + 1);
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    pub(crate) fn gpus(&mut self, name: &str) -> Vec<u32> {
        let job = self.id(name);
        self.pool.holding(job).map_or(Vec::new(), |holding| holding.gpus.iter().collect())
    }

    pub(crate) fn why(&mut self, name: &str) -> Option<Wait> {
        let job = self.id(name);
        self.pool.why(job, self.now)
    }

    /// The latest start that the pool states for a job, in seconds.
    pub(crate) fn latest_start(&mut self, name: &str) -> Option<u64> {
        let job = self.id(name);
        self.pool.bound(job, self.now)?.latest_start.map(|at| at.0 / 1_000)
    }

    fn inputs(&mut self, event: &str) -> Vec<Input> {
        let mut words = event.split_whitespace();
        let verb = words.next().unwrap_or("tick");
        let subject = words.next().unwrap_or_default().to_owned();
        let details: BTreeMap<&str, &str> =
            words.map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
        let get = |key: &str| details.get(key).copied();
        let gpus = get("gpus").map(set);
        let end = get("end").map(seconds);
        let mut jobs = || -> Vec<JobId> { names(&subject).iter().map(|n| self.id(n)).collect() };
        let each =
            |jobs: Vec<JobId>, input: fn(JobId) -> Input| jobs.into_iter().map(input).collect();
        match verb {
            "tick" => Vec::new(),
            "small" | "wide" | "large" => {
                let jobs = jobs();
                let shape = match verb {
                    "small" => Shape::Small,
                    "wide" => Shape::Wide(get("gpus").unwrap().parse().unwrap()),
                    _ => Shape::Large,
                };
                let job = |id| Job {
                    id,
                    shape,
                    priority: get("prio").map_or(0, |p| p.parse().unwrap()),
                    created: get("created").map_or(self.now, seconds),
                    limit: get("limit").map(seconds),
                    tenant: TenantId(get("tenant").map_or(0, |t| t.parse().unwrap())),
                    fits: get("on")
                        .map_or(Fits::Any, |on| Fits::Only(on.split(',').map(node).collect())),
                };
                jobs.into_iter().map(|id| Input::Queued(Box::new(job(id)))).collect()
            }
            "done" => each(jobs(), |job| Input::Released { job, outcome: Outcome::Completed }),
            "failed" => each(jobs(), |job| Input::Released { job, outcome: Outcome::Failed }),
            "cancelled" => each(jobs(), |job| Input::Released { job, outcome: Outcome::Cancelled }),
            "withdraw" => each(jobs(), |job| Input::Withdrawn { job }),
            "bind" => each(jobs(), |job| Input::Bound { job }),
            "refuse" => each(jobs(), |job| Input::BindFailed { job }),
            "vanish" => each(jobs(), |job| Input::Vanished { job }),
            "start" => {
                jobs().into_iter().map(|job| Input::Started { job, latest_end: end }).collect()
            }
            "holds" => vec![Input::Holds { job: jobs()[0], gpus: gpus.unwrap() }],
            "foreign" => {
                let node = details.keys().copied().find(|key| key.starts_with('n')).unwrap();
                let count = get("count").map_or(1, |count| count.parse().unwrap());
                let node = self::node(node);
                vec![Input::Foreign { job: jobs()[0], node, count, gpus, latest_end: end }]
            }
            "node" => {
                let gpus = GpuSet::first(get("gpus").map_or(8, |count| count.parse().unwrap()));
                let healthy = gpus.minus(get("bad").map_or(GpuSet::EMPTY, set));
                let schedulable = get("cordoned").is_none();
                let spec = NodeSpec { gpus, healthy, schedulable };
                vec![Input::NodeChanged { node: node(&subject), spec }]
            }
            "gone" => vec![Input::NodeGone { node: node(&subject) }],
            "set" => vec![Input::Configured(Box::new(self.changed(&subject, &details)))],
            _ => panic!("no such event: {event}"),
        }
    }

    fn changed(&self, first: &str, rest: &BTreeMap<&str, &str>) -> Config {
        let mut config = self.pool.config().clone();
        let first = first.split_once('=').unwrap();
        for (key, value) in rest.iter().map(|(&key, &value)| (key, value)).chain([first]) {
            let on = value == "on";
            match key {
                "backfill" => config.backfill = on,
                "one_wave" => config.one_wave = on,
                "paused" => config.paused = on,
                "evict" => config.evict_overdue = on,
                "turn" => config.turn = Some(seconds(value)),
                "drain_limit" => config.drain_limit = Some(seconds(value)),
                "drains" => config.max_drains = value.parse().unwrap(),
                "keep_open" => config.keep_open = value.parse().unwrap(),
                "quota" => {
                    let (tenant, most) = value.split_once(':').unwrap();
                    config.quotas.insert(TenantId(tenant.parse().unwrap()), most.parse().unwrap());
                }
                _ => panic!("no such setting: {key}"),
            }
        }
        config
    }

    fn render(&self, decided: &[Decision]) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut run: Option<(JobId, JobId, String)> = None;
        for decision in decided {
            // Neighbours in number that go to one node in one way read as one line.
            if let &Decision::Reserved { job, node, kind, .. } = decision {
                let how = format!("{}{}", how(kind), place(node));
                match &mut run {
                    Some((_, last, same))
                        if *same == how && last.0 + 1 == job.0 && self.alike(*last, job) =>
                    {
                        *last = job;
                    }
                    _ => {
                        lines.extend(run.replace((job, job, how)).map(|r| self.admitted(&r)));
                    }
                }
            } else {
                lines.extend(run.take().map(|r| self.admitted(&r)));
                lines.push(self.line(decision));
            }
        }
        lines.extend(run.map(|r| self.admitted(&r)));
        lines
    }

    /// Whether two jobs are of one shape.
    fn alike(&self, one: JobId, other: JobId) -> bool {
        let shape = |job| self.pool.job(job).map(|job| job.shape);
        shape(one) == shape(other)
    }

    fn admitted(&self, (first, last, how): &(JobId, JobId, String)) -> String {
        let (first, last) = (self.name(*first), self.name(*last));
        if first == last { format!("{first} {how}") } else { format!("{first}..{last} {how}") }
    }

    fn line(&self, decision: &Decision) -> String {
        match decision {
            Decision::Reserved { .. } => unreachable!("rendered in runs"),
            Decision::Unreserved { job, node, reason, retry_at } => format!(
                "{} off {} {reason:?} until {}",
                self.name(*job),
                place(*node),
                retry_at.0 / 1_000
            ),
            Decision::GateClosed { node, job, latest_end } => {
                let end = latest_end.map_or("ever".to_owned(), |at| (at.0 / 1_000).to_string());
                format!("{} drains for {} until {end}", place(*node), self.name(*job))
            }
            Decision::GateRetargeted { node, from, to } => {
                let (from, to) = (self.name(*from), self.name(*to));
                format!("{} drains for {to} not {from}", place(*node))
            }
            Decision::GateOpened { node, reason, .. } => {
                format!("{} opens {reason:?}", place(*node))
            }
            Decision::CreditSettled { node, credit } => format!("{} owes {credit:?}", place(*node)),
            Decision::WaveStarted { node, admitted, next } => {
                format!("{} waves {admitted} before {}", place(*node), self.name(*next))
            }
            Decision::DrainOverdue { node, job, blockers } => {
                let blockers: Vec<&str> = blockers.iter().map(|&job| self.name(job)).collect();
                format!(
                    "{} overdue for {} by {}",
                    place(*node),
                    self.name(*job),
                    blockers.join(" ")
                )
            }
            Decision::Evict { job, node } => {
                format!("{} evicted {}", self.name(*job), place(*node))
            }
            Decision::Observed { node, violation } => {
                format!("{} sees {violation:?}", place(*node))
            }
            Decision::Refused { .. } => format!("{decision:?}"),
        }
    }

    fn name(&self, job: JobId) -> &str {
        self.names.iter().find(|&(_, &id)| id == job).map_or("?", |(name, _)| name)
    }
}

/// A pool as its ledger, written and read back, says.
pub(crate) fn restore(pool: &Pool) -> Pool {
    let ledgers = pool.nodes().values().map(|node| serde_json::to_string(node).unwrap());
    let nodes =
        pool.nodes().keys().copied().zip(ledgers.map(|l| serde_json::from_str(&l).unwrap()));
    let placed = pool.nodes().values().flat_map(|node| node.holdings.keys());
    let jobs = placed.filter_map(|&job| pool.job(job).cloned());
    let (config, elsewhere) = (pool.config().clone(), *pool.counters_elsewhere());
    Pool::restore(config, nodes.collect(), jobs, elsewhere).unwrap()
}

/// What must hold after every step, whatever happened.
pub(crate) fn examine(pool: &Pool, decided: &[Decision]) {
    for decision in decided {
        assert!(!matches!(decision, Decision::Refused { .. }), "{decision:?}");
    }
    let mut drained_for = BTreeSet::new();
    for (id, node) in pool.nodes() {
        assert_eq!(check_node(pool.config(), node), [], "{id}: {node:#?}");
        for (&job, holding) in &node.holdings {
            let large = holding.shape == Some(Shape::Large);
            assert!(!large || node.phase == Phase::Exclusive(job), "{id}: {node:#?}");
        }
        // Every closed gate is for one large that waits, and each has one at most.
        if let Some(gate) = node.gate().filter(|_| !pool.config().paused) {
            let waiting = pool.waiting(gate.job).map(|waiting| waiting.job.shape);
            assert_eq!(waiting, Some(Shape::Large), "{id}: {node:#?}");
            assert!(drained_for.insert(gate.job), "two gates for {}", gate.job);
        }
    }
    // Those behind waves count: else all nodes alternate where many larges wait.
    let most = pool.config().max_drains as usize;
    assert!(drained_for.len() <= most, "more gates than {most}: {drained_for:?}");
}

fn queued(input: &Input) -> Option<JobId> {
    match input {
        Input::Queued(job) => Some(job.id),
        _ => None,
    }
}

fn how(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "to ",
        Kind::Wave => "waves to ",
        Kind::Backfill => "fills ",
        Kind::Foreign => "foreign on ",
    }
}

fn place(node: NodeId) -> String {
    format!("n{}", node.0)
}

fn node(name: &str) -> NodeId {
    NodeId(name.trim_start_matches('n').parse().unwrap())
}

/// `10.5` is ten seconds and 500 milliseconds.
fn seconds(text: &str) -> Millis {
    let (whole, thousandths) = text.split_once('.').unwrap_or((text, "0"));
    Millis::from_secs(whole.parse().unwrap())
        + Millis(format!("{thousandths:0<3}").parse().unwrap())
}

fn set(indexes: &str) -> GpuSet {
    indexes.split(',').map(|index| index.parse::<u32>().unwrap()).collect()
}

/// `a,s1..s3` are `a`, `s1`, `s2`, `s3`.
fn names(text: &str) -> Vec<String> {
    let expand = |part: &str| {
        let Some((first, last)) = part.split_once("..") else { return vec![part.to_owned()] };
        let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = |name: &str| name[stem.len()..].parse::<u32>().unwrap();
        (number(first)..=number(last)).map(|i| format!("{stem}{i}")).collect()
    };
    text.split(',').flat_map(expand).collect()
}
