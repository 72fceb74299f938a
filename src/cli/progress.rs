//! Pure side: says on a terminal how far a long run is, and lets an interrupt end it early.
//!
//! The first interrupt ends searches with the best so far, and leaves out what has not begun; the
//! second one ends the process. SIGTERM ends it at once, as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::plan::search::Control;

/// Parts of the bar that one stage fills.
const STAGE: u64 = 1_000;
/// How often the bar is drawn anew.
const EVERY: Duration = Duration::from_millis(200);

/// Watches a run of several stages.
pub(super) struct Watch {
    control: Arc<Control>,
    shared: Arc<Shared>,
    ticker: Option<JoinHandle<()>>,
}

struct Shared {
    bar: ProgressBar,
    ended: AtomicBool,
    stage: AtomicU64,
    /// Milliseconds that the present stage plays, or zero where nobody can say.
    length_ms: AtomicU64,
    /// Schedules that the present stage may try, or zero where nobody can say.
    budget: AtomicU64,
    tried_before: AtomicU64,
}

/// How the progress of a stage is told.
#[derive(Clone, Copy, Default)]
pub(super) struct Stage {
    /// Milliseconds that it plays.
    pub(super) length_ms: u64,
    /// Schedules that it may try.
    pub(super) budget: u64,
}

impl Watch {
    /// Begins to watch a run of so many stages. Nothing is shown where standard error is no
    /// terminal.
    pub(super) fn start(stages: usize) -> anyhow::Result<Self> {
        let control = Arc::new(Control::default());
        let bar = ProgressBar::new(u64::try_from(stages).unwrap_or(u64::MAX).max(1) * STAGE);
        let shown = !bar.is_hidden();
        // The template is a constant that the test below reads.
        bar.set_style(style()?);
        let shared = Arc::new(Shared {
            bar,
            ended: AtomicBool::new(false),
            stage: AtomicU64::new(0),
            length_ms: AtomicU64::new(0),
            budget: AtomicU64::new(0),
            tried_before: AtomicU64::new(0),
        });
        let (seen, bar) = (Arc::clone(&control), shared.bar.clone());
        ctrlc::set_handler(move || {
            if seen.stop.swap(true, Ordering::Relaxed) {
                bar.finish_and_clear();
                std::process::exit(130);
            }
            bar.set_prefix("interrupted, ending with the best so far (again: at once)");
        })
        .context("cannot listen to interrupts")?;
        let ticker = shown.then(|| {
            let (control, shared) = (Arc::clone(&control), Arc::clone(&shared));
            thread::spawn(move || {
                while !shared.ended.load(Ordering::Relaxed) {
                    shared.draw(&control);
                    thread::park_timeout(EVERY);
                }
            })
        });
        Ok(Self { control, shared, ticker })
    }

    /// What searches look at.
    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Whether somebody wants it to end.
    pub(super) fn interrupted(&self) -> bool {
        self.control.stop.load(Ordering::Relaxed)
    }

    /// The next stage begins.
    pub(super) fn says(&self, what: &str, stage: Stage) {
        let shared = &self.shared;
        self.control.now_ms.store(0, Ordering::Relaxed);
        let tried = self.control.tried.load(Ordering::Relaxed);
        shared.tried_before.store(tried, Ordering::Relaxed);
        shared.length_ms.store(stage.length_ms, Ordering::Relaxed);
        shared.budget.store(stage.budget, Ordering::Relaxed);
        shared.stage.fetch_add(1, Ordering::Relaxed);
        shared.bar.set_message(what.to_owned());
    }

    /// Clears the line, and says whether it was interrupted.
    pub(super) fn end(self) -> bool {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(ticker) = self.ticker {
            ticker.thread().unpark();
            // It only draws; if that panicked, the result is as good.
            let _ = ticker.join();
        }
        self.shared.bar.finish_and_clear();
        self.control.stop.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn draw(&self, control: &Control) {
        let done = self.stage.load(Ordering::Relaxed).saturating_sub(1) * STAGE;
        let tried = control.tried.load(Ordering::Relaxed);
        let since = tried.saturating_sub(self.tried_before.load(Ordering::Relaxed));
        let by_budget = share(since, self.budget.load(Ordering::Relaxed));
        let by_time =
            share(control.now_ms.load(Ordering::Relaxed), self.length_ms.load(Ordering::Relaxed));
        self.bar.set_position(done + by_budget.max(by_time));
        self.bar.tick();
    }
}

/// How much of a stage is done.
fn share(done: u64, whole: u64) -> u64 {
    (done.min(whole) * STAGE).checked_div(whole).unwrap_or_default()
}

fn style() -> anyhow::Result<ProgressStyle> {
    let template = "{bar:30} {percent:>3} %  {msg}  {elapsed} {prefix}";
    ProgressStyle::with_template(template).context("cannot draw a progress bar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_done_when_its_budget_is() {
        assert_eq!([share(0, 10), share(5, 10), share(20, 10), share(5, 0)], [0, 500, 1_000, 0]);
        assert!(style().is_ok());
    }
}
