//! Backfill behind several gates.

use sluice::policy::{Config, Gap, Wait};

use super::timeline::{limits, play};

#[test]
fn who_is_served_behind_one_gate_keeps_others_no_longer_from_the_next() {
    // x has waited since before a gate was given up, so nobody passes it at n0, whose drain is too
    // short for it. It is served at n1, and then y may be at n0. z does not fit n0: it has no part.
    let mut timeline = play(
        &Config { backfill: true, max_drains: 3, ..limits(90, 90) },
        3,
        "0 | small s1 on=n0 limit=20; small r1..r8 on=n1 limit=60; small s3 on=n2 limit=80 \
             | s1 to n0; r1..r8 to n1; s3 to n2
         1 | large A on=n0 limit=90; large B on=n1 limit=90; large C on=n2 limit=90 \
             | n0 drains for A until 20; n1 drains for B until 60; n2 drains for C until 80
         2 | small b on=n2 limit=10    | b fills n2
         3 | small z on=n1 limit=70; small x on=n0,n1 limit=50 |
         4 | withdraw C                | n2 opens NotNeeded
         5 | small y on=n0 limit=10    |",
    );
    let older = timeline.id("x");
    let Some(Wait::GateClosed { gap, .. }) = timeline.why("y") else { panic!("y waits") };
    assert_eq!(gap, Gap::Protects(older));
    timeline.play("6 | withdraw z; done r1 | x fills n1; y fills n0");
}
