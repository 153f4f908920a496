//! Measuring: samples, their spread, and the report that every bench writes. Owns the JSON format of `target/bench`.

pub mod cluster;
pub mod gateway;
pub mod large_tree;
pub mod sandbox;
pub mod server;
mod sessions;

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

/// One figure: what was measured, how often, its spread, and the goal it is held against.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Unit.
    pub unit: &'static str,
    /// Number of samples.
    pub samples: usize,
    /// Smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile (the largest when there are fewer than 100 samples).
    pub p99: f64,
    /// Largest.
    pub max: f64,
    /// The goal in words, such as `p50 <= 3`.
    pub goal: String,
    /// Whether the goal holds.
    pub reached: bool,
}

/// Which statistic a goal is about, and on which side of the bound it must lie.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// Median at most.
    MedianAtMost(f64),
    /// Median at least.
    MedianAtLeast(f64),
    /// 99th percentile at most.
    TailAtMost(f64),
    /// Largest at most.
    MaxAtMost(f64),
}

impl Figure {
    /// Sums samples up. An empty list is a fault of the bench and reported as not reached.
    pub fn new(name: impl Into<String>, unit: &'static str, mut values: Vec<f64>, goal: Goal) -> Self {
        values.sort_by(f64::total_cmp);
        // Nearest rank: the smallest value that at least this share of the samples does not exceed.
        let rank = |percent: usize| values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        let (p50, p99) = (rank(50).unwrap_or(f64::NAN), rank(99).unwrap_or(f64::NAN));
        let (min, max) = (values.first().copied().unwrap_or(f64::NAN), values.last().copied().unwrap_or(f64::NAN));
        let (goal, reached) = match goal {
            Goal::MedianAtMost(bound) => (format!("p50 <= {bound}"), p50 <= bound),
            Goal::MedianAtLeast(bound) => (format!("p50 >= {bound}"), p50 >= bound),
            Goal::TailAtMost(bound) => (format!("p99 <= {bound}"), p99 <= bound),
            Goal::MaxAtMost(bound) => (format!("max <= {bound}"), max <= bound),
        };
        Self { name: name.into(), unit, samples: values.len(), min, p50, p99, max, goal, reached }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{:<52} N={:<4} min {:>9.2}  p50 {:>9.2}  p99 {:>9.2}  max {:>9.2} {:<4} {} {}",
            self.name,
            self.samples,
            self.min,
            self.p50,
            self.p99,
            self.max,
            self.unit,
            self.goal,
            if self.reached { "reached" } else { "NOT REACHED" }
        )
    }
}

/// Prints the table and writes `<folder>/<name>.json`.
pub fn report(folder: &Path, name: &str, figures: &[Figure]) -> anyhow::Result<()> {
    use std::io::Write;
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(format!("{name}.json")), serde_json::to_string_pretty(figures)?)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{name}")?;
    for figure in figures {
        writeln!(out, "  {figure}")?;
    }
    Ok(())
}

/// Keeps figures and says them at once, so that a long bench shows where it is and what it has when a later part fails.
fn keep(figures: &mut Vec<Figure>, more: impl IntoIterator<Item = Figure>) {
    use std::io::Write;
    for figure in more {
        let _only_for_people = writeln!(std::io::stderr(), "{figure}");
        figures.push(figure);
    }
}

/// Milliseconds as a number.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Resident memory of a process in MiB, from `/proc/<pid>/status` (`VmRSS`, in KiB).
pub fn resident_mebibytes(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::{Figure, Goal};

    #[test]
    fn percentiles_are_nearest_rank_and_the_goal_is_about_the_named_statistic() {
        let values = (1..=200).map(f64::from).collect();
        let figure = Figure::new("x", "ms", values, Goal::MedianAtMost(100.0));
        assert_eq!((figure.min, figure.p50, figure.p99, figure.max, figure.reached), (1.0, 100.0, 198.0, 200.0, true));
        assert!(!Figure::new("x", "ms", vec![1.0, 5.0], Goal::MaxAtMost(4.0)).reached);
        assert!(!Figure::new("x", "ms", vec![], Goal::MaxAtMost(4.0)).reached);
    }
}
