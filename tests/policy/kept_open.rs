//! Nodes that are kept open for smalls, and larges that wait for one to open.

use sluice::policy::Config;

use super::timeline::play;

fn kept(nodes: u32) -> Config {
    Config { keep_open: nodes, ..Config::default() }
}

#[test]
fn a_large_whose_node_drains_needs_no_other_to_stay_open_for_it() {
    // B may have n1, since n2 stays open; A waits for n0 alone, which is closed already.
    play(
        &kept(1),
        3,
        "0 | small s1 on=n0; small s2 on=n2 | s1 to n0; s2 to n2
         1 | large A on=n0                  | n0 drains for A until ever
         2 | large B                        | B to n1",
    );
}

#[test]
fn a_large_whose_only_node_is_held_needs_no_other_to_stay_open_for_it() {
    play(
        &kept(1),
        3,
        "0 | large X on=n0   | X to n0
         1 | small s1 on=n2  | s1 to n2
         2 | large A on=n0   |
         3 | large B         | B to n1",
    );
}
