//! Streams: each scheduler on a timeline that can be checked by hand, the figures that come of
//! it, the command, and the promise of the live rule on drawn and recorded work. Pure.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::{Command, Output};

use sluice::sim::{Job, Problem};
use sluice::stream::{Contender, Limits, Measured, Spec, play, recorded};
use sluice::trace::{Source, Workload};

const MINUTE: u64 = 60_000;

fn problem(nodes: usize, jobs: &[(u64, u32, u64)]) -> Problem {
    let job = |&(arrival, width, run): &(u64, u32, u64)| Job {
        name: String::new(),
        kind: String::new(),
        priority: 1,
        arrival_ms: arrival * MINUTE,
        deadline_ms: None,
        width,
        estimate_ms: run * MINUTE,
        run_ms: run * MINUTE,
        wider: Vec::new(),
    };
    Problem {
        gpus: 8,
        nodes,
        step_ms: 1,
        horizon_ms: u64::MAX / 4,
        churn_limit: 8,
        jobs: jobs.iter().map(job).collect(),
        services: Vec::new(),
        inherited: Vec::new(),
    }
}

fn measured(problem: &Problem, contender: &str) -> Measured {
    let contender: Contender = contender.parse().unwrap();
    play(problem, &contender, Limits::Times(1000), Some(10 * MINUTE)).unwrap()
}

/// When each job starts, in minutes.
fn starts(measured: &Measured) -> Vec<u64> {
    let mut starts: Vec<(usize, u64)> =
        measured.runs.iter().map(|run| (run.job, run.start_ms / MINUTE)).collect();
    starts.sort_unstable();
    starts.into_iter().map(|(_, start)| start).collect()
}

/// Eight smalls fill the node, one of them for four minutes and the others for ten. Then come a
/// large, a small that would end in time to let it start, one that would not, and a last one.
fn one_node() -> Problem {
    let mut jobs = vec![(0, 1, 10); 7];
    jobs.extend([(0, 1, 4), (1, 8, 5), (2, 1, 3), (3, 1, 20), (15, 1, 1)]);
    problem(1, &jobs)
}

#[test]
fn each_scheduler_does_what_its_rule_says() {
    let problem = one_node();
    // The large, the small that fits before it, the one that does not, the last one.
    for (contender, expected) in [
        ("greedy", [27, 4, 7, 15]),
        ("fifo-strict", [10, 15, 15, 15]),
        ("fifo-skip", [27, 4, 7, 15]),
        ("easy", [10, 4, 15, 15]),
        ("strict-large", [10, 15, 15, 15]),
        ("reserve-after=4m", [10, 4, 15, 15]),
        ("reserve-after=1d", [27, 4, 7, 15]),
        ("phase-fair", [10, 15, 15, 15]),
        ("balanced", [10, 4, 15, 15]),
    ] {
        assert_eq!(starts(&measured(&problem, contender))[8..], expected, "{contender}");
    }
}

#[test]
fn a_backfilled_small_must_fit_by_its_limit_not_by_its_run() {
    // Three minutes would fit; a limit of nine does not.
    let problem = one_node();
    for contender in ["easy+limits=x3", "balanced+limits=x3"] {
        let limited = measured(&problem, contender);
        // The seven hold the node until their limits, thirty minutes; three minutes times three
        // fit before that, and sixty do not.
        assert_eq!(starts(&limited)[8..], [10, 4, 15, 15], "{contender}");
    }
    let jobs = [vec![(0, 1, 10); 7], vec![(0, 1, 4), (1, 8, 5), (2, 1, 3), (2, 1, 6)]].concat();
    let tight = measured(&self::problem(1, &jobs), "easy");
    assert_eq!(starts(&tight)[8..], [10, 4, 15]);
    let exact = self::problem(1, &[&jobs[..10], &[(2, 1, 3)]].concat());
    assert_eq!(starts(&measured(&exact, "easy"))[8..], [10, 4, 7]);
}

#[test]
fn a_kept_node_is_the_one_that_is_empty_soonest_and_others_stay_open() {
    let mut jobs = vec![(0, 1, 10); 7];
    jobs.push((0, 1, 3));
    jobs.extend(vec![(0, 1, 6); 8]);
    jobs.extend([(1, 8, 5), (2, 1, 3), (4, 8, 5)]);
    let problem = problem(2, &jobs);
    for contender in ["strict-large+drains=1", "easy", "phase-fair"] {
        let measured = measured(&problem, contender);
        assert_eq!(starts(&measured)[16..18], [6, 3], "{contender}");
        let large = measured.runs.iter().find(|run| run.job == 16).unwrap();
        assert_eq!(large.node, 1, "{contender}");
    }
    let kept = |contender: &str| {
        let gates = measured(&problem, contender).gates;
        gates.iter().filter(|g| g.kept).map(|g| (g.at_ms / MINUTE, g.node)).collect::<Vec<_>>()
    };
    assert_eq!(kept("strict-large"), [(1, 1), (4, 0)]);
    assert_eq!(kept("strict-large+drains=1")[..1], [(1, 1)]);
    assert_eq!(kept("reserve-after=2m")[..1], [(3, 1)], "it is due between two events");
}

#[test]
fn figures_are_those_that_can_be_computed_by_hand() {
    let figures = measured(&one_node(), "phase-fair").figures;
    // Until the fifteenth minute: seven smalls of ten minutes, one of four, a large of five.
    assert!((figures.utilisation - 114.0 / 120.0).abs() < 1e-12);
    // One GPU is free from the fourth minute to the tenth; two smalls want it all the while.
    assert!((figures.held_idle - 6.0 / 120.0).abs() < 1e-12);
    assert!((figures.idle_while_small_waits - 6.0 / 120.0).abs() < 1e-12);
    assert!((figures.held_idle_gpu_hours - 0.1).abs() < 1e-12);
    let small = figures.small;
    assert_eq!((small.jobs, small.never, small.over_bound), (11, 0, 0));
    assert_eq!(small.median_ms, Some(0));
    assert_eq!((small.p95_ms, small.p99_ms), (Some(13 * MINUTE), Some(13 * MINUTE)));
    assert_eq!(small.max_ms, Some(13 * MINUTE));
    let mean_ms = small.mean_ms.expect("all started");
    assert!((mean_ms - 25.0 / 11.0 * 60_000.0).abs() < 1e-6);
    // Thirteen and twelve minutes, against ten.
    assert_eq!(small.starved, 2);
    let large = figures.whole_node_large;
    assert_eq!((large.jobs, large.max_ms, large.starved), (1, Some(9 * MINUTE), 0));
    // It was promised the end of the drain.
    assert!((large.largest_of_bound.unwrap() - 1.0).abs() < 1e-12);
    // Nobody promises anything under greed: S + (k-1)(L+S) at place 1 is twenty minutes.
    let large = measured(&one_node(), "greedy").figures.whole_node_large;
    assert!((large.largest_of_bound.unwrap() - 26.0 / 20.0).abs() < 1e-12);
    assert_eq!((large.over_bound, large.starved), (1, 1));
}

#[test]
fn jobs_that_never_start_are_told() {
    let jobs = [vec![(0, 1, 10); 8], vec![(1, 8, 5)]].concat();
    let figures = measured(&problem(1, &jobs), "phase-fair+keep-open=1").figures;
    let large = figures.whole_node_large;
    assert_eq!((large.never, large.starved, large.max_ms), (1, 1, None));
    assert_eq!(large.mean_ms, None, "the mean of the others would hide it");
}

/// The promise, on many streams: the rule's own figure for each job as it arrived is kept.
#[test]
fn no_wait_is_longer_than_the_rule_promised() {
    let mut waited = 0;
    for (seed, stream) in [
        "load=0.7",
        "load=0.95",
        "load=1.3,large=0.5",
        "load=0.9,large-work=0.8",
        "load=0.9,small-run=pareto:1h:max=30h,large-run=uniform:30m:90m",
        "load=0.8,small-run=uniform:12m:108m,large-run=uniform:8h:24h",
    ]
    .into_iter()
    .enumerate()
    {
        let Spec::Drawn(drawn) = format!("{stream},jobs=800").parse().unwrap() else {
            panic!("{stream}")
        };
        for nodes in [1, 3] {
            let problem = drawn.generate(8, nodes, seed as u64);
            for contender in [
                "phase-fair",
                "phase-fair+backfill",
                "phase-fair+turn=4L",
                "phase-fair+drains=2",
                "balanced",
                "balanced+limits=exact",
                "balanced+limits=class",
            ] {
                let contender: Contender = contender.parse().unwrap();
                let measured = play(&problem, &contender, Limits::Times(1500), None).unwrap();
                for waits in [&measured.figures.small, &measured.figures.whole_node_large] {
                    assert_eq!(waits.over_bound, 0, "{contender}, {stream}, {nodes} nodes");
                    assert_eq!(waits.never, 0, "{contender}, {stream}, {nodes} nodes");
                }
                waited += measured.small_waits_ms.iter().filter(|wait| **wait > 0).count();
            }
        }
    }
    assert!(waited > 5_000, "only {waited} smalls waited at all");
}

#[test]
fn each_change_of_the_rule_does_what_it_says() {
    let starts = |problem: &Problem, settings: &str| {
        starts(&measured(problem, &format!("variant{settings}")))
    };
    assert_eq!(starts(&one_node(), "+backfill")[8..], [10, 4, 15, 15]);
    // Three larges of five minutes, and a small that comes while the first one runs.
    let turns = problem(1, &[(0, 8, 5), (1, 8, 5), (2, 8, 5), (3, 1, 1)]);
    for (settings, expected) in [
        ("", [0, 6, 11, 5]),
        ("+batch=2", [0, 5, 11, 10]),
        ("+batch=4", [0, 5, 10, 15]),
        ("+turn=12m", [0, 5, 11, 10]),
        ("+oldest=6m", [0, 5, 11, 10]),
    ] {
        assert_eq!(starts(&turns, settings), expected, "{settings}");
    }
    let short = problem(1, &[(0, 8, 5), (1, 8, 5), (2, 1, 10), (6, 1, 20)]);
    assert_eq!(starts(&short, ""), [0, 15, 5, 20]);
    assert_eq!(starts(&short, "+join"), [0, 26, 5, 6]);
    // A large ends on the first node, the second drains for another one, and the third is open.
    let jobs = [vec![(0, 8, 5)], vec![(0, 1, 10); 16], vec![(1, 8, 5), (2, 1, 1)]].concat();
    let pool = problem(3, &jobs);
    assert_eq!(starts(&pool, "")[17..], [5, 10]);
    assert_eq!(starts(&pool, "+node-credit")[17..], [6, 5]);
}

#[test]
fn each_choice_of_the_node_to_drain_is_the_one_it_says() {
    let gates = |problem: &Problem, settings: &str| {
        let gates = measured(problem, &format!("variant{settings}")).gates;
        let closed = gates.iter().filter(|gate| gate.kept);
        closed.map(|gate| (gate.at_ms / MINUTE, gate.node)).collect::<Vec<_>>()
    };
    // Eight smalls of ten minutes on one node, one of twenty on the other.
    let jobs = [vec![(0, 1, 10); 8], vec![(0, 1, 20), (1, 8, 5)]].concat();
    let two = problem(2, &jobs);
    for (settings, node) in [
        ("", 0),
        ("+drain=fewest", 1),
        ("+drain=last", 1),
        ("+limits=class", 1),
        ("+limits=class+drain=oracle", 0),
    ] {
        assert_eq!(gates(&two, settings), [(1, node)], "{settings}");
    }
    // The one that would end last by its limit ends, and the other node is empty sooner.
    let moves = problem(2, &[(0, 1, 11), (9, 1, 7), (10, 1, 6), (10, 8, 5)]);
    let settings = "+limits=x3+place=emptiest";
    assert_eq!(gates(&moves, settings), [(10, 1)]);
    assert_eq!(gates(&moves, &format!("{settings}+drain=moving")), [(10, 1), (11, 0)]);
}

#[test]
fn nodes_for_one_shape_and_spread_smalls_are_what_they_say() {
    let jobs = [vec![(0, 1, 10); 9], vec![(1, 8, 5)]].concat();
    let nine = problem(2, &jobs);
    assert_eq!(starts(&measured(&nine, "partition=1"))[8..], [10, 1]);
    assert_eq!(starts(&measured(&nine, "greedy"))[8..], [0, 10]);
    let two = problem(2, &[(0, 1, 10), (0, 1, 10), (1, 8, 5)]);
    assert_eq!(starts(&measured(&two, "greedy"))[2], 1);
    assert_eq!(starts(&measured(&two, "greedy+place=emptiest"))[2], 10);
    let contender: Contender = "partition=2".parse().unwrap();
    let error = play(&two, &contender, Limits::Class, None).unwrap_err().to_string();
    assert!(error.contains("leave at least one for each shape"), "{error}");
}

/// Seven smalls of ten minutes, a wide one that lacks three GPUs, and two that would fit.
#[test]
fn wide_smalls_are_played_to_all_but_those_that_know_none() {
    let jobs = [vec![(0, 1, 10); 7], vec![(1, 4, 5), (2, 1, 3), (3, 1, 20)]].concat();
    let wide = problem(1, &jobs);
    for (contender, expected) in [
        ("greedy", [10, 2, 5]),
        ("fifo-strict", [10, 10, 10]),
        ("fifo-skip", [10, 2, 5]),
        ("easy", [10, 2, 10]),
        ("strict-large", [10, 2, 5]),
        ("phase-fair", [10, 10, 10]),
    ] {
        let measured = measured(&wide, contender);
        assert_eq!(starts(&measured)[7..], expected, "{contender}");
        let figures = measured.figures;
        let waits = figures.wide_small.unwrap();
        assert_eq!((figures.small.jobs, waits.jobs, waits.max_ms), (9, 1, Some(9 * MINUTE)));
        assert_eq!((figures.small.over_bound, waits.largest_of_bound), (0, None));
    }
    let contender: Contender = "variant".parse().unwrap();
    let error = play(&wide, &contender, Limits::Class, None).unwrap_err().to_string();
    assert!(error.contains("one asks for 4"), "{error}");
}

/// What was tried beside the product is measured with a second writing of the rule; this is what
/// makes its figures worth something.
#[test]
fn the_rule_written_twice_starts_the_same_jobs_on_the_same_nodes() {
    let mut compared = 0;
    for (seed, stream) in
        ["load=0.8", "load=1.1", "load=0.9,large-work=0.8", "load=0.9,large-run=uniform:30m:90m"]
            .into_iter()
            .enumerate()
    {
        let Spec::Drawn(drawn) = format!("{stream},jobs=400").parse().unwrap() else {
            panic!("{stream}")
        };
        for nodes in [1, 2, 5] {
            let problem = drawn.generate(8, nodes, seed as u64);
            for settings in [
                "",
                "+limits=class",
                "+backfill",
                "+backfill+turn=4L",
                "+turn=2L",
                "+drains=2",
                "+backfill+drains=5",
                "+one-wave",
                "+backfill+one-wave+limits=exact",
            ] {
                let who = |name: &str| -> Vec<(usize, usize, u64)> {
                    let contender: Contender = format!("{name}{settings}").parse().unwrap();
                    let measured = play(&problem, &contender, Limits::Times(1500), None).unwrap();
                    measured
                        .runs
                        .iter()
                        .map(|run| (run.start_ms, run.job, run.node))
                        .map(|(start, job, node)| (job, node, start))
                        .collect()
                };
                let (mut live, mut twice) = (who("phase-fair"), who("variant"));
                live.sort_unstable();
                twice.sort_unstable();
                let differ = live.iter().zip(&twice).find(|(one, other)| one != other);
                assert_eq!(differ, None, "{settings}, {stream}, {nodes} nodes");
                compared += live.len();
            }
        }
    }
    assert_eq!(compared, 4 * 3 * 9 * 400);
}

#[test]
fn the_trace_shows_what_greed_costs_larges() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/traces/itp-cluster05.csv");
    let content = std::fs::read_to_string(path).unwrap();
    let list = Workload::read(Source { name: "itp", content: &content }, None).unwrap();
    let (problem, left_out) = recorded(&list, 1.0, false, 8, 1);
    assert_eq!((problem.jobs.len(), left_out), (3542, 87));
    let p95 = |contender: &str| {
        let contender: Contender = contender.parse().unwrap();
        let measured = play(&problem, &contender, Limits::Times(1500), None).unwrap();
        measured.figures.whole_node_large.p95_ms.unwrap()
    };
    assert!(p95("greedy") > 3 * p95("phase-fair") && p95("phase-fair") > p95("balanced"));
}

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).arg("simulate").args(args).output().unwrap()
}

fn refusal(args: &[&str]) -> (i32, String) {
    let output = sluice(args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let all = |run: &str, seed: &str| {
        let path = |what: &str| folder.path().join(format!("{run}-{what}")).display().to_string();
        let (svg, plot) = (path("lanes.svg"), path("plot.svg"));
        let args = ["--stream", "jobs=400,load=0.9", "--json", "--seed", seed];
        let output = sluice(&[&args[..], &["--svg", &svg, "--plot", &plot]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [output.stdout, std::fs::read(svg).unwrap(), std::fs::read(plot).unwrap()]
    };
    let (first, again, other) = (all("first", "3"), all("again", "3"), all("other", "4"));
    assert!(first == again);
    assert!(first.iter().zip(&other).all(|(one, other)| one != other));
    let json: serde_json::Value = serde_json::from_slice(&first[0]).unwrap();
    assert_eq!(json["contenders"].as_array().unwrap().len(), 8);
    assert_eq!(json["contenders"][0]["name"], "greedy");
    assert!(json["contenders"][6]["small"]["p99_ms"].is_u64());
    for picture in &first[1..] {
        let text = String::from_utf8_lossy(picture);
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("reserve-after=1L") && text.contains("balanced"));
    }
}

#[test]
fn the_command_says_what_is_wrong() {
    for (args, code, part) in [
        (&[][..], 2, "<JOBS>"),
        (&["--stream", "load=0"], 2, "a number above 0"),
        (&["--stream", "sise=3"], 2, "no key \"sise\""),
        (&["--stream", "load=0.5", "jobs.csv"], 2, "cannot be used with"),
        (&["--stream", "load=0.5", "--check"], 2, "cannot be used with"),
        (&["jobs.csv", "--plot", "x.svg"], 2, "cannot be used with"),
        (&["--stream", "load=0.5", "--limits", "loose"], 2, "says nothing of limits"),
        (&["--stream", "load=0.5", "--window", "2h"], 2, "expected FROM..TO"),
        (&["--stream", "load=0.5", "--policy", "lottery"], 2, "no scheduler \"lottery\""),
        (&["--stream", "load=0.5", "--policy", "phase-fair+wave=9"], 1, "waveSize is 9"),
        (&["--stream", "load=0.5", "--nodes", "0"], 1, "--nodes is 0"),
        (&["--stream", "load=0.5", "--gpus", "1"], 1, "--gpus is 1"),
        (&["--stream", "jobs=9", "--window", "1000d..2000d", "--svg", "x.svg"], 1, "nothing runs"),
        (&["--stream", "trace=no-such.csv"], 1, "failed to read no-such.csv"),
    ] {
        let (exit, said) = refusal(args);
        assert!(exit == code && said.contains(part), "{args:?} gave {exit}: {said}");
    }
}

#[test]
fn the_table_tells_it_all() {
    let output =
        sluice(&["--stream", "jobs=300,load=0.9,large=0", "--policy", "greedy,phase-fair"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("300 small and 0 whole-node-large jobs"), "{text}");
    assert!(text.contains("large      none"), "{text}");
    assert!(text.contains("load 0.90, 0 % of it larges"), "{text}");
    // Without larges all are the same.
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("  small ")).collect();
    let figures = |line: &str| line.split("small").nth(1).unwrap().get(..60).unwrap().to_owned();
    assert_eq!(figures(lines[0]), figures(lines[1]));
    // Without smalls the shares stand where they stand with them.
    let output = sluice(&["--stream", "jobs=9,large=1", "--policy", "greedy"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let end = |part: &str| {
        let line = text.lines().find(|line| line.contains(part)).unwrap();
        line.chars().count()
    };
    assert_eq!(end("of bound"), end("  small "), "{text}");
}
