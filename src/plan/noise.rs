//! Pure side: makes estimates and forecasts wrong, in known ways, to see how much of a gain
//! remains. Policies go on seeing what was expected; the world does something else.

use super::search::Random;
use crate::sim::{Curve, Problem};

/// How wrong.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Noise {
    /// Spread of run time by estimate: a lognormal factor with median 1 and this sigma.
    pub run_sigma: f64,
    /// Demand comes this much earlier or later than forecast.
    pub shift_ms: u64,
    /// Demand is up to so many GPUs above or below its forecast, anew every two hours.
    pub gpus: u32,
    /// GPUs that policies keep above the forecast, as a precaution.
    pub margin: u32,
    /// Seed of the errors.
    pub seed: u64,
}

impl Noise {
    /// Whether anything is to be wrong at all.
    pub fn is_some(&self) -> bool {
        self.run_sigma > 0.0 || self.shift_ms > 0 || self.gpus > 0 || self.margin > 0
    }
}

const ERROR_HOLDS_MS: u64 = 2 * crate::trace::HOUR_MS;

/// The same problem in a world that differs from what is expected of it.
pub fn apply(problem: &mut Problem, noise: Noise) {
    let mut random = Random::new(noise.seed ^ 0x5eed_0f0e_1101);
    for job in &mut problem.jobs {
        // Drawn even where it is not used, so that one kind of error leaves the other as it is.
        let factor = (noise.run_sigma * normal(&mut random)).exp();
        if noise.run_sigma > 0.0 {
            let step_ms = problem.step_ms;
            let longer = |ms: u64| scaled(ms / step_ms, factor).max(1) * step_ms;
            job.run_ms = longer(job.estimate_ms);
            for shape in &mut job.wider {
                shape.run_ms = longer(shape.estimate_ms);
            }
        }
    }
    for run in &mut problem.inherited {
        run.end_ms = run.start_ms + problem.jobs[run.job].run_ms;
    }
    let (horizon_ms, step_ms) = (problem.horizon_ms, problem.step_ms);
    let most = problem.gpus;
    for service in &mut problem.services {
        let late = random.below(2) == 1;
        let shift_ms = noise.shift_ms / step_ms * step_ms;
        let span = usize::try_from(2 * noise.gpus + 1).unwrap_or(1);
        let errors: Vec<u32> = (0..=horizon_ms / ERROR_HOLDS_MS)
            .map(|_| u32::try_from(random.below(span)).unwrap_or_default())
            .collect();
        let mut steps = Vec::new();
        for at in (0..horizon_ms).step_by(usize::try_from(step_ms).unwrap_or(usize::MAX)) {
            let from = if late { at.saturating_sub(shift_ms) } else { at + shift_ms };
            let error = errors[usize::try_from(at / ERROR_HOLDS_MS).unwrap_or(0)];
            let raised = service.forecast.at(from.min(horizon_ms - 1)) + error;
            steps.push((at, raised.saturating_sub(noise.gpus).min(most)));
        }
        service.demand = Curve::new(steps);
        let kept = service.forecast.steps().iter().map(|&(at, gpus)| {
            (at, if at < horizon_ms { (gpus + noise.margin).min(most) } else { gpus })
        });
        let first = [(0, noise.margin.min(most))];
        let begins_later = service.forecast.steps().first().is_none_or(|&(at, _)| at > 0);
        let first = first.into_iter().filter(|_| begins_later && noise.margin > 0);
        service.forecast = Curve::new(first.chain(kept).collect());
        // Whoever reserves the peak knows no curve, but sees that there was more.
        service.peak = service.peak.max(service.demand.peak(horizon_ms));
    }
}

/// Close to a normal distribution: the sum of twelve even ones, which needs no transcendental
/// function and is the same on every machine.
fn normal(random: &mut Random) -> f64 {
    let even =
        |_| f64::from(u32::try_from(random.bits() >> 32).unwrap_or_default()) / 4_294_967_296.0;
    (0..12).map(even).sum::<f64>() - 6.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn scaled(steps: u64, factor: f64) -> u64 {
    (super::metrics::to_f64(steps) * factor).round().clamp(0.0, 1e12) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_centred_and_as_wide_as_asked() {
        let mut random = Random::new(4);
        let drawn: Vec<f64> = (0..20_000).map(|_| normal(&mut random)).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let spread = drawn.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03, "{mean}");
        assert!((spread - 1.0).abs() < 0.05, "{spread}");
    }
}
