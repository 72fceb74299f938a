//! Pure side: how many GPUs a service needs from when on: `job_id,time,gpus`.

use std::collections::{BTreeMap, BTreeSet};

use super::jobs::gpus;
use super::table::Table;
use super::time::{MOMENT, Moment, parse_moment};
use super::{Faults, Source};

/// One change of a service's demand.
pub(super) struct Step {
    pub(super) service: String,
    pub(super) time: Moment,
    pub(super) gpus: u32,
    pub(super) line: u64,
}

/// Reads a demand file.
pub(super) fn read(source: Source<'_>, faults: &mut Faults) -> Vec<Step> {
    let table = Table::read(source, &["job_id", "time", "gpus"], &[], faults);
    let Some(table) = table else { return Vec::new() };
    let step = |row: super::table::Row<'_>| {
        let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let service = row.need("job_id", "a name", faults, named);
        let time = row.need("time", MOMENT, faults, parse_moment);
        let gpus = row.need("gpus", "a whole number from 0 to 64", faults, gpus);
        Some(Step { service: service?, time: time?, gpus: gpus?, line: row.line })
    };
    table.rows().filter_map(step).collect()
}

/// Steps by service, each to be taken once.
pub(super) struct Curves {
    by_service: BTreeMap<String, BTreeMap<u64, (u32, u64)>>,
    twice: Vec<(u64, String)>,
}

impl Curves {
    pub(super) fn new(steps: Vec<Step>, at: impl Fn(Moment) -> u64) -> Self {
        let mut by_service: BTreeMap<String, BTreeMap<u64, (u32, u64)>> = BTreeMap::new();
        let mut twice = Vec::new();
        for step in steps {
            let curve = by_service.entry(step.service.clone()).or_default();
            if curve.insert(at(step.time), (step.gpus, step.line)).is_some() {
                twice.push((step.line, step.service));
            }
        }
        Self { by_service, twice }
    }

    /// The curve of a service, in ascending order of time.
    pub(super) fn take(
        &mut self,
        service: &str,
        most: u32,
        file: Option<Source<'_>>,
        faults: &mut Faults,
    ) -> Vec<(u64, u32)> {
        let curve = self.by_service.remove(service).unwrap_or_default();
        for &(gpus, line) in curve.values().filter(|(gpus, _)| *gpus > most) {
            let allowed = format!("at most max_gpus of {service}, which is {most}");
            let file = file.map_or("", |file| file.name);
            faults.add(file, line, "gpus", gpus.to_string(), allowed);
        }
        curve.into_iter().map(|(time, (gpus, _))| (time, gpus)).collect()
    }

    /// Reports what belongs to no service, or says two things about one moment.
    pub(super) fn report_unused(
        &self,
        file: &str,
        services: &BTreeSet<String>,
        faults: &mut Faults,
    ) {
        for (service, curve) in self.by_service.iter().filter(|(id, _)| !services.contains(*id)) {
            let line = curve.values().map(|(_, line)| *line).min().unwrap_or_default();
            let allowed = "a job of the list whose expected_duration is demand-curve";
            faults.add(file, line, "job_id", format!("{service:?}"), allowed);
        }
        for (line, service) in &self.twice {
            let found = format!("a second row of {service:?} for one moment");
            faults.add(file, *line, "time", found, "each moment once");
        }
    }
}
