//! What waiting jobs were told: how it is kept, when it is looked at again, how it is said.

use sluice::policy::{
    Basis, Bound, Cause, Input, Job, JobId, Millis, Promises, Shape, Standing, UnreserveReason,
};

use super::promises::Told;
use super::timeline::{Timeline, limits, restore};

#[test]
fn those_who_wait_are_told_again_when_a_holder_outlasts_its_limit() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | small r1..r8 limit=10 | r1..r8 to n0");
    assert_eq!(told.timeline.promises.next_wakeup(Millis(0)), None, "nobody waits");
    told.play("1 | large A limit=50      | n0 drains for A until 10");
    assert_eq!(told.timeline.promises.next_wakeup(Millis(1_000)), Some(Millis(10_001)));
    told.play("10.001 | tick | n0 overdue for A by r1 r2 r3 r4 r5 r6 r7 r8");
    assert_eq!(told.timeline.promises.next_wakeup(Millis(10_001)), None);
    told.play("11 | done r1..r8 | A to n0");
    told.play("20 | done A | n0 owes NoLargeWaits");
    assert_eq!(told.timeline.promises.next_wakeup(Millis(20_000)), None);
}

#[test]
fn who_comes_back_itself_is_counted_anew() {
    let mut told = Told { timeline: Timeline::slow(&limits(10, 50), 1) };
    told.play("0 | small r1..r8 limit=10; small s limit=10 | r1..r8 to n0");
    assert_eq!(told.told("s"), Some(220));
    told.play(
        "1 | bind r1..r8 |
         5 | done r1     | s to n0",
    );
    let s = told.timeline.id("s");
    let cause = Cause::CameBack(s, UnreserveReason::BindFailed);
    let moved = told.play("6 | refuse s | s off n0 BindFailed until 11");
    assert_eq!(moved, [(220, Some(11 + 220), cause)]);
}

#[test]
fn each_that_goes_before_counts_and_not_only_the_last() {
    // s is seventh of eight in a round. One more leaves it there, the second does not.
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | large R limit=50; small s1..s7 limit=10 | R to n0");
    assert_eq!(told.play("40 | small p1 limit=10 prio=1 |"), []);
    let p2 = told.timeline.id("p2");
    let moved = told.play("41 | small p2 limit=10 prio=1 |");
    assert_eq!(moved, [(220, Some(440), Cause::ServedFirst(p2))]);
}

#[test]
fn an_explanation_tells_what_was_told_before() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play(
        "0 | small r1..r8 limit=10 | r1..r8 to n0
         1 | large A limit=50      | n0 drains for A until 10",
    );
    let a = told.timeline.id("A");
    let said = |timeline: &Timeline| {
        let explanation = timeline.pool.explain(a, timeline.now).unwrap();
        let Standing::Waits(waits) = explanation.standing else { panic!("A waits") };
        *waits
    };
    let earlier = Bound { latest_start: Some(Millis::from_secs(9)), basis: Basis::Place(1) };
    let mut waits = said(&told.timeline);
    assert_eq!(Some(waits.bound), told.timeline.promises.bound(a));
    let glance = told.timeline.promises.glance(&told.timeline.pool, a, Millis(1_000)).unwrap();
    let Standing::Waits(glance) = glance.standing else { panic!("A waits") };
    assert_eq!(glance.bound, waits.bound);
    let now = waits.bound;
    waits.promised(now);
    assert!(!waits.rests.told_before);
    waits.promised(earlier);
    assert_eq!(waits.bound, earlier);
    assert!(waits.rests.told_before);
    // Whoever has outlasted its limit is named all the same.
    told.play("10.001 | tick | n0 overdue for A by r1 r2 r3 r4 r5 r6 r7 r8");
    let mut waits = said(&told.timeline);
    let outlasted = waits.bound.basis;
    assert!(matches!(outlasted, Basis::Outlasted(_)));
    waits.promised(earlier);
    assert_eq!(waits.bound, Bound { basis: outlasted, ..earlier });
}

#[test]
fn whose_gpus_are_only_exchanged_goes_before_nobody_anew() {
    let mut told = Told { timeline: Timeline::slow(&limits(10, 50), 1) };
    told.play("0 | small r1..r7 limit=10; small a limit=10; small s1..s8 limit=10 | r1..a to n0");
    assert_eq!(told.told("s8"), Some(220));
    let moved = told.play(
        "1 | bind r1..r7       |
         2 | holds r2 gpus=7   | a to n0",
    );
    assert_eq!(moved, []);
    assert_eq!(told.timeline.gpus("a"), [1]);
}

#[test]
fn at_the_very_end_of_its_limit_nobody_has_outlasted_it() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | small r1..r8 limit=10; small s limit=10 | r1..r8 to n0");
    assert_eq!(told.play("10 | small z limit=10 |"), []);
    assert_eq!((told.told("s"), told.told("z")), (Some(220), Some(10 + 220)));
    let Timeline { pool, promises, .. } = &mut told.timeline;
    assert!(!promises.step(pool, &[], Millis(10_000)).noted, "there is nothing to tell");
    assert!(promises.step(pool, &[], Millis(10_001)).noted);
}

#[test]
fn who_begins_anew_says_which_times_are_later_for_that() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | large R limit=50; small s1..s9 limit=10; wide w gpus=2 limit=10 | R to n0");
    assert_eq!((told.told("s1"), told.told("s9"), told.told("w")), (Some(220), Some(440), None));
    let [s1, s9] = ["s1", "s9"].map(|name| told.timeline.id(name));
    let old = &told.timeline.pool;
    let (mut pool, mut promises) = (restore(old), Promises::default());
    let waiting: Vec<Job> = old.queue(Shape::Small).map(|waiting| waiting.job.clone()).collect();
    for (job, told) in [(s1, 220), (s9, 440)] {
        let job = waiting.iter().find(|waiting| waiting.id == job).unwrap();
        promises.recall(job, Millis::from_secs(told));
    }
    let mut step = |promises: &mut Promises, jobs: &[Job], now| {
        let inputs: Vec<Input> = jobs.iter().map(|j| Input::Queued(Box::new(j.clone()))).collect();
        let moved = promises.step(&mut pool, &inputs, Millis::from_secs(now)).moved;
        let seconds = |at: Millis| at.0 / 1_000;
        moved.iter().map(|m| (m.job, seconds(m.from), m.to.map(seconds), m.cause)).collect()
    };
    // How much of the wait was over when it was told is known no more: all counts from now.
    let moved: Vec<_> = step(&mut promises, &waiting, 30);
    let anew = [(s1, 220, Some(30 + 220)), (s9, 440, Some(30 + 440))];
    assert_eq!(moved, anew.map(|(job, from, to)| (job, from, to, Cause::Restarted)));
    // From then on its own word counts, and what moves a time is named.
    let first = waiting.iter().find(|waiting| waiting.id == s1).unwrap();
    promises.recall(first, Millis::from_secs(1));
    let moved: Vec<_> = step(&mut promises, std::slice::from_ref(first), 31);
    assert_eq!(moved, [(s1, 30 + 220, Some(31 + 220), Cause::Changed)]);
}

#[test]
fn who_begins_anew_names_who_is_the_cause_where_no_time_can_be_given() {
    let mut told = Told::new(&limits(10, 50), 1);
    told.play("0 | large R limit=50; small s1 limit=10 | R to n0");
    let old = &told.timeline.pool;
    let s1 = old.queue(Shape::Small).next().unwrap().job.clone();
    let unlimited = Job { id: JobId(99), priority: 1, limit: None, ..s1.clone() };
    let (mut pool, mut promises) = (restore(old), Promises::default());
    promises.recall(&s1, Millis::from_secs(220));
    let inputs = [s1.clone(), unlimited].map(|job| Input::Queued(Box::new(job)));
    let moved = promises.step(&mut pool, &inputs, Millis::from_secs(30)).moved;
    let [moved] = moved[..] else { panic!("{moved:?}") };
    assert_eq!((moved.job, moved.to, moved.cause), (s1.id, None, Cause::Unlimited(JobId(99))));
}

/// A has n0 at 10, as it was told, and goes to n1 when n0 is cordoned then.
fn placed_elsewhere_at(seconds: u64) -> Vec<(u64, Option<u64>, Cause)> {
    let mut told = Told { timeline: Timeline::slow(&limits(10, 50), 2) };
    told.play(
        "0  | small s limit=10 on=n0; small t limit=5 on=n1    | s to n0; t to n1
         0  | bind s,t |
         0  | large Q limit=50 on=n1; large A limit=50         | n1 drains for Q until 5
         5  | done t   | Q to n1; n0 drains for A until 10
         5  | bind Q   |
         10 | done s   | A to n0
         10 | done Q   | n1 owes NoLargeWaits",
    );
    assert_eq!(told.told("A"), Some(10));
    told.play(&format!(
        "{seconds} | node n0 cordoned \
         | A off n0 NodeUnfit until {seconds}; n0 owes NodeUnfit; A to n1"
    ))
}

#[test]
fn who_is_placed_elsewhere_at_once_may_be_later_than_it_was_told() {
    assert_eq!(placed_elsewhere_at(10), []);
    let [(from, to, cause)] = placed_elsewhere_at(29)[..] else { panic!("nothing moved") };
    assert_eq!((from, to), (10, Some(29)));
    assert!(matches!(cause, Cause::CameBack(_, UnreserveReason::NodeUnfit)));
}
