//! Pure: who is compared, by the name that the command line knows it by.

use std::fmt;
use std::str::FromStr;

use super::limits::{Limits, LimitsError, Longest};
use super::meter::Player;
use crate::policy::{Config, Millis};
use crate::sim::Problem;
use crate::sim::phase_fair::{PhaseFair, Unfit};
use crate::sim::rivals::{Place, Rival, Rule};
use crate::sim::variants::{Changes, Drain, Follow, Variant};
use crate::trace::parse_duration;

/// One scheduler with its settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contender {
    name: String,
    who: Who,
    limits: Option<Limits>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Rival(Kind, Place),
    PhaseFair(Settings),
    Variant(Sketch),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Greedy,
    FifoStrict,
    FifoSkip,
    Easy,
    Reserve { after: Span, drains: Option<u32> },
    Partition { larges: u32 },
}

/// What differs from the plain rule beside the product.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sketch {
    changes: Changes,
    /// Where `changes.follow` is a time.
    follow: Option<(Until, Span)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Until {
    Turn,
    Oldest,
}

/// What differs from the plain rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Settings {
    backfill: bool,
    turn: Option<Span>,
    keep_open: u32,
    one_wave: bool,
    drains: Option<u32>,
    wave: Option<u32>,
}

/// A length of time, or so many times the longest limit of a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Span {
    Fixed(u64),
    /// In thousandths.
    Smalls(u64),
    /// In thousandths.
    Larges(u64),
}

impl Span {
    fn parse(text: &str) -> Option<Self> {
        let times = |unit: char| {
            let text = text.strip_suffix(unit)?;
            let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let whole: u64 = whole.parse().ok().filter(|&n| n <= 1_000_000)?;
            let short = digits(part) && part.len() <= 3;
            let part: u64 = format!("{part:0<3}").parse().ok().filter(|_| short)?;
            Some(whole * 1000 + part)
        };
        let of_shape = times('S').map(Self::Smalls).or_else(|| times('L').map(Self::Larges));
        of_shape
            .or_else(|| (text == "0").then_some(Self::Fixed(0)))
            .or_else(|| parse_duration(text).map(Self::Fixed))
    }

    fn ms(self, longest: Longest) -> u64 {
        match self {
            Self::Fixed(ms) => ms,
            Self::Smalls(times) => longest.small_ms.saturating_mul(times) / 1000,
            Self::Larges(times) => longest.large_ms.saturating_mul(times) / 1000,
        }
    }
}

/// What contenders look like, for help and errors.
pub const FORMS: &str = "greedy, fifo-strict, fifo-skip, easy, strict-large, reserve-after=2h, \
     partition=4, phase-fair, balanced or variant, and after any of them +KEY=VALUE: limits=x1.5, \
     for all but the live rule place=latest-end, fullest or emptiest, for those that close nodes \
     drains=1, for phase-fair backfill, turn=4L, keep-open=1, one-wave, wave=4 (4L is four times \
     the longest limit of a large, 2S twice a small's); variant has what docs/simulator.md says";

/// A text that names no contender, or one that cannot serve a stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContenderError {
    /// Not one of the names.
    #[error("there is no scheduler {0:?}; there are {FORMS}")]
    Name(String),
    /// Not one of its settings.
    #[error("{name}: {setting:?} means nothing; there are {FORMS}")]
    Setting {
        /// Of whom.
        name: String,
        /// The setting.
        setting: String,
    },
    /// Limits that are none.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// It cannot serve such work, or refuses its settings.
    #[error("{name}: {reason}")]
    Unfit {
        /// Who.
        name: String,
        /// Why.
        reason: String,
    },
}

impl FromStr for Contender {
    type Err = ContenderError;

    fn from_str(text: &str) -> Result<Self, ContenderError> {
        let mut parts = text.split('+');
        let name = parts.next().unwrap_or_default();
        let mut who = Who::named(name).ok_or_else(|| ContenderError::Name(name.to_owned()))?;
        let mut limits = None;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if key == "limits" {
                limits = Some(value.parse()?);
            } else if who.set(key, value).is_none() {
                let (name, setting) = (name.to_owned(), part.to_owned());
                return Err(ContenderError::Setting { name, setting });
            }
        }
        Ok(Self { name: text.to_owned(), who, limits })
    }
}

impl Who {
    fn named(name: &str) -> Option<Self> {
        let at_once = Span::Fixed(0);
        let kind = match name {
            "greedy" => Kind::Greedy,
            "fifo-strict" => Kind::FifoStrict,
            "fifo-skip" => Kind::FifoSkip,
            "easy" => Kind::Easy,
            "strict-large" => Kind::Reserve { after: at_once, drains: None },
            "phase-fair" => return Some(Self::PhaseFair(Settings::default())),
            "balanced" => {
                let turn = Some(Span::Larges(4000));
                let settings = Settings { backfill: true, turn, ..Settings::default() };
                return Some(Self::PhaseFair(settings));
            }
            "variant" => return Some(Self::Variant(Sketch::default())),
            _ => {
                if let Some(larges) = name.strip_prefix("partition=") {
                    Kind::Partition { larges: larges.parse().ok()? }
                } else {
                    let after = Span::parse(name.strip_prefix("reserve-after=")?)?;
                    Kind::Reserve { after, drains: None }
                }
            }
        };
        Some(Self::Rival(kind, Place::default()))
    }

    /// `None` where the setting means nothing to it.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let count = || value.parse::<u32>().ok().filter(|&count| count > 0);
        match (self, key) {
            (Self::Rival(_, place), "place") => *place = placing(value)?,
            (Self::Variant(sketch), _) => sketch.set(key, value)?,
            (Self::Rival(Kind::Reserve { drains, .. }, _), "drains") => *drains = Some(count()?),
            (Self::PhaseFair(settings), "drains") => settings.drains = Some(count()?),
            (Self::PhaseFair(settings), "keep-open") => settings.keep_open = count()?,
            (Self::PhaseFair(settings), "wave") => settings.wave = Some(count()?),
            (Self::PhaseFair(settings), "turn") => settings.turn = Some(Span::parse(value)?),
            (Self::PhaseFair(settings), "one-wave") if value.is_empty() => settings.one_wave = true,
            (Self::PhaseFair(settings), "backfill") if value.is_empty() => settings.backfill = true,
            _ => return None,
        }
        Some(())
    }
}

fn placing(value: &str) -> Option<Place> {
    match value {
        "fullest" => Some(Place::Fullest),
        "latest-end" => Some(Place::LatestEnd),
        "emptiest" => Some(Place::Emptiest),
        _ => None,
    }
}

impl Sketch {
    /// `None` where the setting means nothing to it.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let Self { changes, follow } = self;
        let positive = |text: &str| text.parse().ok().filter(|&count: &u32| count > 0);
        match (key, value) {
            ("backfill", "") => changes.backfill = true,
            ("pass-given-up", "") => changes.pass_given_up = true,
            ("join", "") => changes.join = true,
            ("node-credit", "") => changes.node_credit = true,
            ("one-wave", "") => changes.one_wave = true,
            ("waves-free", "") => changes.waves_free = true,
            ("place", _) => changes.place = placing(value)?,
            ("drains", _) => changes.drains = usize::try_from(positive(value)?).ok()?,
            ("batch", _) => changes.follow = Follow::Larges(positive(value)?),
            ("turn", _) => *follow = Some((Until::Turn, Span::parse(value)?)),
            ("oldest", _) => *follow = Some((Until::Oldest, Span::parse(value)?)),
            ("drain", "moving") => changes.drain = Drain::Moving,
            ("drain", "fewest") => changes.drain = Drain::Fewest,
            ("drain", "oracle") => changes.drain = Drain::Oracle,
            ("drain", "last") => changes.drain = Drain::Last,
            _ => return None,
        }
        Some(())
    }

    fn changes(self, longest: Longest) -> Changes {
        let follow = match self.follow {
            None => self.changes.follow,
            Some((Until::Turn, span)) => Follow::WithinMs(span.ms(longest)),
            Some((Until::Oldest, span)) => Follow::OldestMs(span.ms(longest)),
        };
        Changes { follow, ..self.changes }
    }
}

impl Contender {
    /// Those that a comparison begins with.
    pub fn usual() -> Vec<Self> {
        let names = [
            "greedy",
            "strict-large",
            "reserve-after=1L",
            "fifo-strict",
            "fifo-skip",
            "easy",
            "phase-fair",
            "balanced",
        ];
        names.into_iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// As it is written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits that it knows, where they are not those of all.
    pub fn limits(&self) -> Option<Limits> {
        self.limits
    }

    /// Somebody new who plays this part.
    pub(super) fn player(
        &self,
        problem: &Problem,
        longest: Longest,
    ) -> Result<Player, ContenderError> {
        let unfit = |reason: String| ContenderError::Unfit { name: self.name.clone(), reason };
        match self.who {
            Who::Rival(kind, place) => Rival::new(problem, kind.rule(problem, longest), place)
                .map(Player::Rival)
                .map_err(|error| unfit(error.to_string())),
            Who::Variant(sketch) => Variant::new(problem, sketch.changes(longest))
                .map(Player::Variant)
                .map_err(|error| unfit(error.to_string())),
            Who::PhaseFair(settings) => {
                let config = settings.config(problem, longest);
                PhaseFair::with(problem, config)
                    .map(|policy| Player::PhaseFair(Box::new(policy)))
                    .map_err(|error| match error {
                        Unfit::Config(refused) => unfit(refused.to_string()),
                        other => unfit(other.to_string()),
                    })
            }
        }
    }
}

impl Kind {
    fn rule(self, problem: &Problem, longest: Longest) -> Rule {
        match self {
            Self::Greedy => Rule::Greedy,
            Self::FifoStrict => Rule::FifoStrict,
            Self::FifoSkip => Rule::FifoSkip,
            Self::Easy => Rule::Easy,
            Self::Partition { larges } => {
                Rule::Partition { larges: usize::try_from(larges).unwrap_or(usize::MAX) }
            }
            Self::Reserve { after, drains } => {
                let drains = drains.and_then(|drains| usize::try_from(drains).ok());
                let drains = drains.unwrap_or(problem.nodes);
                Rule::Reserve { after_ms: after.ms(longest), drains }
            }
        }
    }
}

impl Settings {
    fn config(self, problem: &Problem, longest: Longest) -> Config {
        let gpus = problem.gpus;
        let plain = Config::default();
        Config {
            gpus_per_node: gpus,
            wave_size: self.wave.unwrap_or(gpus),
            max_drains: self.drains.unwrap_or(plain.max_drains),
            backfill: self.backfill,
            turn: self.turn.map(|turn| Millis(turn.ms(longest))),
            keep_open: self.keep_open,
            one_wave: self.one_wave,
            small_limit: Some(Millis(longest.small_ms)),
            large_limit: Some(Millis(longest.large_ms)),
            ..plain
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_are_read_with_their_settings() {
        let who = |text: &str| text.parse::<Contender>().unwrap().who;
        assert_eq!(who("balanced"), who("phase-fair+backfill+turn=4L"));
        assert_eq!(who("strict-large"), who("reserve-after=0"));
        assert_eq!(who("reserve-after=90m"), who("reserve-after=1h30m"));
        assert_ne!(who("strict-large"), who("strict-large+drains=1"));
        assert_ne!(who("easy"), who("easy+place=latest-end"));
        assert_ne!(who("variant"), who("variant+batch=4"));
        assert_ne!(who("variant+turn=2L"), who("variant+oldest=2L"));
        let times = |text: &str| {
            Span::parse(text).map(|span| span.ms(Longest { small_ms: 6, large_ms: 3000 }))
        };
        assert_eq!(
            ["4L", "2.667L", "0.5S", "2.L", "1.0005L"].map(times),
            [Some(12_000), Some(8_001), Some(3), None, None]
        );
        let easy: Contender = "easy+limits=exact".parse().unwrap();
        assert_eq!((easy.name(), easy.limits()), ("easy+limits=exact", Some(Limits::Times(1000))));
        assert_eq!(Contender::usual().len(), 8);
    }

    #[test]
    fn wrong_contenders_say_what_there_is() {
        for (text, part) in [
            ("lottery", "no scheduler \"lottery\"; there are greedy"),
            ("reserve-after", "no scheduler"),
            ("reserve-after=soon", "no scheduler"),
            ("easy+turn=4L", "easy: \"turn=4L\" means nothing"),
            ("phase-fair+wave=0", "\"wave=0\" means nothing"),
            ("phase-fair+place=fullest", "\"place=fullest\" means nothing"),
            ("variant+batch=0", "\"batch=0\" means nothing"),
            ("variant+wave=4", "\"wave=4\" means nothing"),
            ("partition=half", "no scheduler"),
            ("easy+limits=1.5", "\"1.5\" says nothing of limits"),
        ] {
            let error = text.parse::<Contender>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
