//! The histories behind the pages of `explained.txt`, as tables.

use sluice::policy::{Config, Millis};

use super::timeline::limits;

/// A history and the pod that is asked about at its end.
pub(super) struct Case {
    pub(super) what: &'static str,
    pub(super) config: Config,
    pub(super) nodes: u32,
    pub(super) table: &'static str,
    pub(super) pod: &'static str,
    /// Nobody is bound and started but whom the table says.
    pub(super) slow: bool,
}

pub(super) fn case(what: &'static str, pod: &'static str, table: &'static str) -> Case {
    Case { what, config: limits(100, 500), nodes: 1, table, pod, slow: false }
}

fn on(nodes: u32, case: Case) -> Case {
    Case { nodes, ..case }
}

fn with(config: Config, mut case: Case) -> Case {
    case.config = config;
    case
}

fn slow(case: Case) -> Case {
    Case { slow: true, ..case }
}

fn balanced() -> Config {
    Config { backfill: true, turn: Some(Millis::from_secs(2_000)), ..limits(100, 500) }
}

fn held_back() -> Vec<Case> {
    vec![
        case("A paused pool", "a", "0 | set paused=on; small a limit=100 |"),
        case(
            "A paused pool whose GPUs are held",
            "B",
            "0 | large A,B limit=500 | A to n0
             1 | set paused=on |",
        ),
        slow(case(
            "A pod whose binding was refused",
            "a",
            "0 | small a limit=100 | a to n0
             1 | refuse a | a off n0 BindFailed until 6",
        )),
        slow(case(
            "A pod that was not bound in time",
            "a",
            "0 | small a limit=100 | a to n0
             30 | tick | a off n0 Expired until 35",
        )),
        case(
            "A namespace that holds what it may",
            "s3",
            "0 | set quota=7:2 |
             1 | small s1..s3 tenant=7 limit=100; small s4 limit=100 | s1..s2 to n0; s4 to n0",
        ),
        case(
            "A large that its namespace's quota can never hold",
            "A",
            "0 | set quota=7:2 |
             1 | large A tenant=7 limit=500 |",
        ),
        on(
            2,
            case(
                "A small whose namespace's large goes first",
                "s2",
                "0 | set quota=7:8 |
                 1 | small s1 tenant=7 limit=100 | s1 to n0
                 2 | large A tenant=7 limit=500; small s2 tenant=7 limit=100 |",
            ),
        ),
    ]
}

fn no_node() -> Vec<Case> {
    vec![
        on(0, case("A pool without nodes", "a", "0 | small a limit=100 |")),
        case("A pod that matches no node", "a", "0 | small a on=n5 limit=100 |"),
        case("A cordoned node", "a", "0 | node n0 cordoned; small a limit=100 |"),
        on(
            0,
            case(
                "Nodes of another size",
                "A",
                "0 | node n0 gpus=4; node n1 gpus=16; large A limit=500 |",
            ),
        ),
        case("A GPU that is not healthy", "A", "0 | node n0 bad=3; large A limit=500 |"),
        on(
            2,
            case(
                "Two nodes, each with another fault",
                "A",
                "0 | node n0 bad=3,4; node n1 cordoned; large A limit=500 |",
            ),
        ),
    ]
}

fn larges() -> Vec<Case> {
    let drain = "0 | small s1..s3 limit=100 | s1..s3 to n0
                 1 | large A,B limit=500 | n0 drains for A until 100";
    let kept = Config { keep_open: 1, ..limits(100, 500) };
    vec![
        case("The first large, while a node is emptied for it", "A", drain),
        case("The second large", "B", drain),
        case(
            "A drain whose last pod has outlasted its limit",
            "A",
            "0 | small s1 limit=100 | s1 to n0
             1 | large A limit=500 | n0 drains for A until 100
             100.001 | tick | n0 overdue for A by s1
             110 | tick |",
        ),
        case(
            "A drain behind a pod without a limit",
            "A",
            "0 | small s1 limit=100; small free | s1..free to n0
             1 | large A limit=500 | n0 drains for A until ever",
        ),
        case(
            "A large behind a wave",
            "B",
            "0 | large A,B limit=500; small s1..s2 limit=100 | A to n0
             40 | done A | n0 owes Wave; s1..s2 waves to n0; n0 waves 2 before B",
        ),
        case("A large while another runs", "B", "0 | large A,B limit=500 | A to n0"),
        case("The fifth large", "E", "0 | large A,B,C,D,E limit=500 | A to n0"),
        on(
            2,
            case(
                "A large on a pool whose nodes are all held by larges",
                "C",
                "0 | large A limit=500; large B limit=300; large C limit=500 | A to n0; B to n1",
            ),
        ),
        with(kept, case("A node that is kept open for smalls", "A", "0 | large A limit=500 |")),
        on(
            2,
            case(
                "A foreign pod holds up the drain",
                "A",
                "0 | foreign f n0 count=2; small s1 limit=100 on=n1 | s1 to n1
                 1 | large A limit=500 on=n0 | n0 drains for A until ever",
            ),
        ),
        on(
            2,
            case(
                "A large that is served before one which its quota holds back",
                "B",
                "0 | set quota=7:8; small q limit=100 tenant=7 on=n1 | q to n1
                 0 | small a limit=100 on=n0 | a to n0
                 1 | large A limit=500 tenant=7 on=n1 |
                 1 | large B limit=500 | n0 drains for B until 100",
            ),
        ),
    ]
}

fn smalls() -> Vec<Case> {
    let gate = "0 | small s1..s8 limit=100 | s1..s8 to n0
                1 | large A limit=500 | n0 drains for A until 100
                2 | done s1,s2; small t1 limit=100 |";
    vec![
        case("A small behind a closed gate", "t1", gate),
        with(
            balanced(),
            case("A small behind a closed gate that is too long to be let in", "t1", gate),
        ),
        case(
            "A small while a large runs",
            "s1",
            "0 | large A limit=500; small s1 limit=100 | A to n0",
        ),
        case(
            "The tenth small",
            "s18",
            "0 | small s1..s8 limit=100 | s1..s8 to n0
             1 | large A limit=500 | n0 drains for A until 100
             2 | small s9..s18 limit=100 |",
        ),
        case(
            "Every GPU is held",
            "s10",
            "0 | small s1..s8 limit=100; small s9,s10 limit=50 | s1..s8 to n0",
        ),
        with(
            Config { large_limit: None, ..limits(100, 500) },
            case(
                "A pool without a limit for larges",
                "s9",
                "0 | small s1..s9 limit=90 | s1..s8 to n0",
            ),
        ),
        case(
            "A wide small for which GPUs are kept",
            "w",
            "0 | small s1..s5 limit=100 | s1..s5 to n0
             1 | wide w gpus=4 limit=100 |",
        ),
        case(
            "A small behind a wide one",
            "t",
            "0 | small s1..s5 limit=100 | s1..s5 to n0
             1 | wide w gpus=4 limit=100 |
             2 | small t limit=10 |",
        ),
        case(
            "A wide small behind another",
            "v",
            "0 | small s1..s7 limit=100 | s1..s7 to n0
             1 | wide w gpus=4 limit=100 |
             2 | wide v gpus=2 limit=100 |",
        ),
        case(
            "A wide small for which there are too few healthy GPUs",
            "w",
            "0 | node n0 bad=0,1,2,3,4 |
             1 | wide w gpus=4 limit=100 |",
        ),
    ]
}

/// What the options add to the rule.
fn options() -> Vec<Case> {
    let turn = |seconds| Config { turn: Some(Millis::from_secs(seconds)), ..limits(100, 500) };
    let after_a = "0 | large A limit=500; large B limit=300; small s1 limit=100 | A to n0";
    let one_wave = Config { one_wave: true, max_drains: 2, ..limits(100, 500) };
    let backfill = Config { backfill: true, ..limits(100, 500) };
    vec![
        with(turn(900), case("A small while the turn of the larges goes on", "s1", after_a)),
        with(turn(700), case("A small while the turn may go on", "s1", after_a)),
        with(
            one_wave,
            on(
                2,
                case(
                    "A small on a pool with one wave at a time",
                    "t2",
                    "0 | small s1..s8 limit=100 on=n0; large A limit=50 on=n1 | A to n1; s1..s8 to n0
                     1 | large B,C limit=500; small t1..t2 limit=100 | n0 drains for B until 100",
                ),
            ),
        ),
        with(
            backfill.clone(),
            case(
                "A small behind one that nobody passes any more",
                "u",
                "0 | small s1..s6 limit=100 | s1..s6 to n0
                 1 | large A limit=500 | n0 drains for A until 100
                 2 | small old limit=100; small t1..t2 limit=50 | t1..t2 fills n0
                 3 | withdraw A | n0 opens NoLargeWaits
                 4 | large B limit=500 | n0 drains for B until 100
                 5 | done s1; small u limit=10 |",
            ),
        ),
        with(
            backfill.clone(),
            case(
                "A wide small behind a closed gate with too few free GPUs",
                "w",
                "0 | small s1..s6 limit=100 | s1..s6 to n0
                 1 | large A limit=500 | n0 drains for A until 100
                 2 | wide w gpus=3 limit=50 |",
            ),
        ),
        with(
            backfill,
            case(
                "A small behind a drain without a known end",
                "t",
                "0 | small s1 | s1 to n0
                 1 | large A limit=500 | n0 drains for A until ever
                 2 | small t limit=10 |",
            ),
        ),
    ]
}

/// Where others have to run first.
fn far_behind() -> Vec<Case> {
    let day = "0 | small s1..s8 limit=100 | s1..s8 to n0
               1 | large A,B,C,D limit=500 | n0 drains for A until 100
               2 | small s9..s40 limit=100 |";
    vec![
        case("The twentieth small behind four larges", "s28", day),
        case("The last small behind four larges", "s40", day),
        case("The fourth large behind waves", "D", day),
        on(
            2,
            case(
                "A large that fits a node which the one before it does not",
                "D",
                "0 | large A limit=300 on=n0; large B limit=500 on=n1 | A to n0; B to n1
                 1 | large C limit=500 on=n0; large D limit=500 on=n1 |",
            ),
        ),
        on(
            2,
            case(
                "A large before which another node is emptied",
                "D",
                "0 | small s1 on=n0 limit=100; small s2 on=n1 limit=90 | s1 to n0; s2 to n1
                 1 | large C limit=500 on=n0; large D limit=500 on=n1 | n0 drains for C until 100",
            ),
        ),
        on(
            2,
            case(
                "A large beside whose node another may be empty sooner",
                "A",
                "0 | small s1..s2 limit=100; small t limit=100 on=n1 | s1..s2 to n0; t to n1
                 1 | done s1,s2; small s3..s4 limit=50 on=n0 | s3..s4 to n0
                 2 | large A limit=500 | n0 drains for A until 51",
            ),
        ),
        on(
            9,
            case(
                "More ends before it than are tried one by one",
                "s66",
                "0 | small r1..r72 limit=100 | r1..r8 to n0; r9..r16 to n1; r17..r24 to n2; \
                     r25..r32 to n3; r33..r40 to n4; r41..r48 to n5; r49..r56 to n6; \
                     r57..r64 to n7; r65..r72 to n8
                 1 | small s1 limit=100 on=n8; small s2..s66 limit=100 |",
            ),
        ),
    ]
}

fn with_gpus() -> Vec<Case> {
    let admitted = "0 | small a limit=100 | a to n0";
    let drain = "0 | small s1..s3 limit=100 | s1..s3 to n0
                 1 | large A limit=500 | n0 drains for A until 100";
    vec![
        slow(case("A pod with a reservation", "a", admitted)),
        slow(case("A pod that is bound", "a", "0 | small a limit=100 | a to n0\n1 | bind a |")),
        case("A pod that runs", "a", admitted),
        case("A large that runs", "A", "0 | large A limit=500 | A to n0"),
        case("A pod that holds up a drain", "s1", drain),
        case("A pod without a limit", "a", "0 | small a | a to n0"),
        case("A pod that is gone and not released", "a", "0 | small a | a to n0\n5 | vanish a |"),
        case(
            "A pod of a wave",
            "s1",
            "0 | large A,B limit=500; small s1 limit=100 | A to n0
             40 | done A | n0 owes Wave; s1 waves to n0; n0 waves 1 before B",
        ),
        with(
            balanced(),
            case(
                "A pod that was let in behind the gate",
                "t",
                "0 | small s1..s2 limit=100 | s1..s2 to n0
                 1 | large A limit=500 | n0 drains for A until 100
                 2 | small t limit=50 | t fills n0",
            ),
        ),
        with(
            Config {
                drain_limit: Some(Millis::from_secs(50)),
                evict_overdue: true,
                ..limits(100, 500)
            },
            case(
                "A pod that is evicted",
                "s1",
                "0 | small s1 limit=100 | s1 to n0
                 1 | large A limit=500 | n0 drains for A until 100
                 51 | tick | n0 overdue for A by s1; s1 evicted n0",
            ),
        ),
        case("A pod that went round Sluice", "f", "0 | foreign f n0 count=2 |"),
    ]
}

/// One for each page.
pub(super) fn cases() -> Vec<Case> {
    let all = [held_back(), no_node(), larges(), smalls(), options(), far_behind(), with_gpus()];
    all.into_iter().flatten().collect()
}
