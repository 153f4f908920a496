//! Times of day at which a workspace is started or put to sleep, in a time zone.
//!
//! A slot that falls into the hour which daylight saving skips is the first instant after it; one in the hour that is repeated
//! counts once, the first time. Zones come from the database inside the program, so that a decision depends on nothing else.

use croner::{Cron, parser::CronParser};
use jiff::{
    Timestamp, Zoned,
    tz::{TimeZone, TimeZoneDatabase},
};

use crate::crd;

/// A start that was missed for longer than this (the operator was away) is not made up for: nobody waits for it any more.
pub const STALE_SECONDS: i64 = 3600;
/// An expression that matches no day within this many years never will, within anybody's patience: `0 0 30 2 *`.
const HORIZON_YEARS: i32 = 8;

/// What a slot asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotKind {
    /// Sleep.
    Stop,
    /// Run. Of a start and a stop at the same instant the start counts.
    Start,
}

/// One time at which something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: SlotKind,
}

/// One expression in its zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    kind: SlotKind,
    times: Cron,
    zone: TimeZone,
}

impl Schedule {
    /// Reads both expressions of a schedule; the message tells what is wrong.
    pub fn parse(raw: &crd::Schedule) -> Result<Vec<Self>, String> {
        let name = &raw.name;
        let zone_name = raw.time_zone.as_deref().unwrap_or("UTC");
        let zone = TimeZoneDatabase::bundled()
            .get(zone_name)
            .map_err(|_| format!("schedule {name}: there is no time zone {zone_name:?}"))?;
        let mut schedules = Vec::new();
        for (kind, text) in [(SlotKind::Start, &raw.start), (SlotKind::Stop, &raw.stop)] {
            let Some(text) = text else { continue };
            let times = expression(text).map_err(|why| format!("schedule {name}: {text:?} {why}"))?;
            schedules.push(Self { kind, times, zone: zone.clone() });
        }
        if schedules.is_empty() {
            return Err(format!("schedule {name} has neither start nor stop"));
        }
        Ok(schedules)
    }

    fn latest(&self, until: Timestamp) -> Option<Slot> {
        let until = until.to_zoned(self.zone.clone());
        self.slot(self.times.find_previous_occurrence(&until, true))
    }

    fn next(&self, after: Timestamp) -> Option<Slot> {
        let after = after.to_zoned(self.zone.clone());
        self.slot(self.times.find_next_occurrence(&after, false))
    }

    fn slot<E>(&self, found: Result<Zoned, E>) -> Option<Slot> {
        // Seconds are 0 in every expression; those of the instant that the search began at do not belong to the slot.
        let at = found.ok()?.timestamp();
        Some(Slot { at: Timestamp::from_second(at.as_second()).ok()?, kind: self.kind })
    }
}

fn expression(text: &str) -> Result<Cron, String> {
    use croner::parser::{Seconds, Year};
    // Nicknames such as @hourly are one word; what is documented is five fields.
    if text.split_whitespace().count() != 5 {
        return Err("is not five fields: minute, hour, day of the month, month, day of the week".to_owned());
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let times = parser.parse(text).map_err(|error| format!("is not a schedule: {error}"))?;
    if happens(&times) { Ok(times) } else { Err(format!("matches no day in {HORIZON_YEARS} years")) }
}

/// Whether any day matches. Without this check a search would go through the millennia, at each decision.
fn happens(times: &Cron) -> bool {
    let first = jiff::civil::date(2024, 1, 1);
    first
        .series(jiff::Span::new().days(1))
        .take_while(|day| i32::from(day.year()) < 2024 + HORIZON_YEARS)
        .any(|day| times.is_day(day))
}

trait Days {
    fn is_day(&self, day: jiff::civil::Date) -> bool;
}

impl Days for Cron {
    fn is_day(&self, day: jiff::civil::Date) -> bool {
        use croner::CronDateTime;
        let (year, month, number) =
            (i32::from(day.year()), day.month().unsigned_abs().into(), day.day().unsigned_abs().into());
        let noon = day.at(12, 0, 0, 0).to_zoned(TimeZone::UTC);
        let weekday = noon.map(|noon| noon.civil_weekday());
        let matches = |weekday| {
            Ok::<_, croner::errors::CronError>(
                self.pattern.month_match(month)? && self.pattern.day_match(year, month, number, weekday)?,
            )
        };
        weekday.is_ok_and(|weekday| matches(weekday).unwrap_or(false))
    }
}

/// The newest slot in (`after`, `until`].
pub fn latest_due(schedules: &[Schedule], after: Timestamp, until: Timestamp) -> Option<Slot> {
    schedules.iter().filter_map(|schedule| schedule.latest(until)).filter(|slot| slot.at > after).max()
}

/// The next slot of a kind after a time.
pub fn next(schedules: &[Schedule], kind: SlotKind, after: Timestamp) -> Option<Timestamp> {
    let same = schedules.iter().filter(|schedule| schedule.kind == kind);
    same.filter_map(|schedule| schedule.next(after)).map(|slot| slot.at).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedules(start: Option<&str>, stop: Option<&str>, zone: &str) -> Vec<Schedule> {
        Schedule::parse(&raw(start, stop, zone)).unwrap()
    }

    fn raw(start: Option<&str>, stop: Option<&str>, zone: &str) -> crd::Schedule {
        crd::Schedule {
            name: "workdays".to_owned(),
            start: start.map(str::to_owned),
            stop: stop.map(str::to_owned),
            time_zone: Some(zone.to_owned()),
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Every slot in a span, as the operator meets them: minute by minute.
    fn met(schedules: &[Schedule], from: &str, to: &str) -> Vec<String> {
        let (mut seen, mut now, to) = (time(from), time(from), time(to));
        let mut slots = Vec::new();
        while now < to {
            now += jiff::SignedDuration::from_secs(60);
            if let Some(slot) = latest_due(schedules, seen, now) {
                slots.push(format!("{:?} {}", slot.kind, slot.at));
                seen = slot.at;
            }
        }
        slots
    }

    #[test]
    fn a_slot_counts_in_its_own_time_zone() {
        let berlin = schedules(Some("0 8 * * 1-5"), Some("0 20 * * 1-5"), "Europe/Berlin");
        assert_eq!(
            met(&berlin, "2026-01-09T00:00:00Z", "2026-01-12T23:00:00Z"),
            [
                "Start 2026-01-09T07:00:00Z",
                "Stop 2026-01-09T19:00:00Z",
                "Start 2026-01-12T07:00:00Z",
                "Stop 2026-01-12T19:00:00Z"
            ]
        );
        let july = time("2026-07-01T12:00:00Z");
        assert_eq!(next(&berlin, SlotKind::Stop, july), Some(time("2026-07-01T18:00:00Z")));
        assert_eq!(next(&berlin, SlotKind::Start, july), Some(time("2026-07-02T06:00:00Z")));
    }

    #[test]
    fn a_slot_in_the_skipped_hour_comes_right_after_it_and_once() {
        // 2026-03-29: 02:00 → 03:00 in Berlin, that is 01:00Z.
        let berlin = schedules(Some("30 2 * * *"), None, "Europe/Berlin");
        assert_eq!(
            met(&berlin, "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"),
            ["Start 2026-03-29T01:00:00Z", "Start 2026-03-30T00:30:00Z"]
        );
    }

    #[test]
    fn a_slot_in_the_repeated_hour_comes_once() {
        // 2026-10-25: 03:00 → 02:00 in Berlin, so 02:30 is 00:30Z and 01:30Z.
        let berlin = schedules(None, Some("30 2 * * *"), "Europe/Berlin");
        assert_eq!(
            met(&berlin, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
            ["Stop 2026-10-25T00:30:00Z", "Stop 2026-10-26T01:30:00Z"]
        );
    }

    #[test]
    fn after_downtime_only_the_latest_slot_counts() {
        let both = schedules(Some("0 8 * * *"), Some("0 20 * * *"), "UTC");
        let due = |until: &str| latest_due(&both, time("2026-01-01T00:00:00Z"), time(until)).map(|slot| slot.kind);
        assert_eq!(due("2026-01-05T09:00:00Z"), Some(SlotKind::Start));
        assert_eq!(due("2026-01-05T21:00:00Z"), Some(SlotKind::Stop));
        assert_eq!(due("2026-01-01T07:00:00Z"), None);
    }

    #[test]
    fn of_a_start_and_a_stop_at_one_instant_the_start_counts() {
        let both = schedules(Some("0 8 * * *"), Some("0 8 * * *"), "UTC");
        let due = latest_due(&both, time("2026-01-01T00:00:00Z"), time("2026-01-01T08:00:30Z"));
        assert_eq!(due, Some(Slot { at: time("2026-01-01T08:00:00Z"), kind: SlotKind::Start }));
    }

    #[test]
    fn what_can_never_happen_or_be_read_is_refused_with_its_name() {
        let refused = |start: &str, zone: &str| Schedule::parse(&raw(Some(start), None, zone)).unwrap_err();
        assert!(refused("0 0 30 2 *", "UTC").contains("matches no day"));
        assert!(refused("0 0 0 1 1 * 2020", "UTC").contains("five fields"));
        assert!(refused("@daily", "UTC").contains("five fields"));
        assert!(refused("61 * * * *", "UTC").contains("is not a schedule"));
        assert!(refused("0 8 * * *", "Europe/Atlantis").contains("Europe/Atlantis"));
        assert!(Schedule::parse(&raw(None, None, "UTC")).unwrap_err().contains("workdays"));
        assert!(Schedule::parse(&raw(Some("0 0 29 2 *"), None, "UTC")).is_ok(), "a leap day happens");
    }
}
