//! Tenants with a quota: what they may hold, and in what order their own jobs go.

use sluice::policy::{Config, TenantId};

use super::timeline::play;

fn quota(most: u32) -> Config {
    Config { quotas: [(TenantId(7), most)].into(), ..Config::default() }
}

#[test]
fn a_tenant_holds_no_more_than_its_quota_and_others_pass() {
    play(
        &quota(2),
        1,
        "0 | small a1..a4 tenant=7; small b1,b2 | a1..a2 to n0; b1..b2 to n0
         1 | done b1                            |
         2 | done a1                            | a3 to n0",
    );
}

#[test]
fn a_large_over_its_quota_closes_no_gate() {
    play(
        &quota(7),
        1,
        "0 | small s1         | s1 to n0
         1 | large A tenant=7 |
         2 | small s2         | s2 to n0
         3 | large B          | n0 drains for B until ever
         4 | done s1,s2       | B to n0",
    );
}

#[test]
fn a_tenants_own_smalls_do_not_starve_its_large() {
    // Eight may be held: each small that starts would put the large off, as on a node without a
    // gate. Those that came before it go first, those that came after wait.
    play(
        &quota(8),
        2,
        "0 | small a1,a2 tenant=7            | a1..a2 to n0
         1 | large A tenant=7                |
         2 | small a3 tenant=7; small b1     | b1 to n0
         3 | done a1                         |
         4 | done a2                         | A to n1
         9 | done A                          | n1 owes NoLargeWaits; a3 to n0",
    );
}

#[test]
fn a_tenants_own_larges_do_not_starve_its_small() {
    play(
        &quota(8),
        2,
        "0 | large A tenant=7                | A to n0
         1 | small a1 tenant=7               |
         2 | large B tenant=7                |
         9 | done A                          | n0 owes NoLargeWaits; a1 to n0
         10 | done a1                        | B to n0",
    );
}

#[test]
fn a_gate_does_not_close_for_a_large_that_earlier_smalls_of_its_tenant_put_off() {
    // Ten may be held. Two earlier smalls wait behind the gate for B: with them and A it is ten;
    // with the third it is eleven.
    play(
        &quota(10),
        1,
        "0 | small s1..s8                    | s1..s8 to n0
         1 | large B                         | n0 drains for B until ever
         2 | small a1..a3 tenant=7           |
         3 | large A tenant=7                |
         4 | withdraw B                      | n0 opens NotNeeded
         5 | done s1                         | a1 to n0
         6 | withdraw a2                     | n0 drains for A until ever",
    );
}

#[test]
fn a_large_that_its_quota_never_allows_keeps_nothing_from_its_tenant() {
    play(&quota(4), 1, "0 | large A tenant=7; small a1..a5 created=1 tenant=7 | a1..a4 to n0");
}

#[test]
fn who_passes_its_own_tenants_jobs_takes_no_quota_from_a_large_that_a_node_drains_for() {
    // With a1 and A it is nine. Were a2 let in, one GPU were missing, and the gate would open again.
    play(
        &Config { backfill: true, ..quota(9) },
        1,
        "0 | small s1..s7 limit=60                                                | s1..s7 to n0
         1 | small a1 tenant=7; large A tenant=7; small a2 tenant=7 limit=5; small b limit=5 \
             | n0 drains for A until 60; b fills n0",
    );
    // The same where they fit different nodes.
    play(
        &quota(9),
        2,
        "0 | small s1..s8 on=n0; small t1 on=n1            | s1..s8 to n0; t1 to n1
         1 | small a1 on=n0 tenant=7; large A on=n0 tenant=7 | n0 drains for A until ever
         2 | small a2 tenant=7                              |
         3 | small b                                        | b to n1",
    );
}

#[test]
fn a_gate_closes_only_for_as_many_larges_of_a_tenant_as_it_may_run() {
    play(
        &Config { max_drains: 2, ..quota(8) },
        2,
        "0 | small s1..s16                              | s1..s8 to n0; s9..s16 to n1
         1 | large A on=n0 tenant=7; large B on=n1 tenant=7 | n0 drains for A until ever",
    );
}
