//! The pictures of a result of the load tool: what each draws out of the document. Pure.

use super::chart::{AxisPlan, Chart, Level, Look, Point, SERIES_MAX, Series};
use super::quantity::{Unit, percentile_name};
use super::scale::Scale;
use crate::lab::histogram::Histogram;
use crate::lab::result::{Floor, Latency, LatencyKind, Moment, OtherLatency, Percentile, Run};
use crate::lab::summary::{kind_name, percentile};

const TIME: AxisPlan<'static> = AxisPlan {
    label: "seconds since the start of the measured time",
    unit: Unit::Plain,
    scale: Scale::Linear,
};

const LATENCY: AxisPlan<'static> = AxisPlan {
    label: "latency",
    unit: Unit::Micros,
    scale: Scale::Log,
};

const HEIGHT: f64 = 320.0;

fn line(name: &str, colour: usize, points: Vec<Point>) -> Series {
    Series {
        name: name.to_owned(),
        look: Look::Line,
        points,
        colour,
    }
}

/// Records and errors in each second.
pub(super) fn throughput_over_time(run: &Run) -> Option<String> {
    let series = |name: &str, colour: usize, of: fn(&Moment) -> u64| {
        let points = run.over_time.iter();
        let points = points.map(|at| Point::at(f64::from(at.second), of(at) as f64));
        let any = run.over_time.iter().any(|at| of(at) > 0);
        any.then(|| line(name, colour, points.collect()))
    };
    let all = [
        series("produced", 0, |at| at.produced_records),
        series("consumed", 2, |at| at.consumed_records),
        series("errors", 1, |at| at.errors),
    ];
    let series: Vec<Series> = all.into_iter().flatten().collect();
    if series.is_empty() || run.over_time.len() < 2 {
        return None;
    }
    Some(
        Chart {
            title: "Throughput over time",
            x: TIME,
            y: AxisPlan {
                label: "records in each second",
                unit: Unit::PerSecond,
                scale: Scale::Linear,
            },
            series,
            levels: Vec::new(),
            height: HEIGHT,
        }
        .figure(),
    )
}

/// Each kind of latency in each second.
pub(super) fn latency_over_time(run: &Run) -> Vec<String> {
    let Some(first) = run.latencies.first().map(|first| first.kind) else {
        return Vec::new();
    };
    let kinds = run.latencies.iter().map(|latency| latency.kind);
    let charts = kinds.filter_map(|kind| latency_of_kind_over_time(run, kind, first));
    charts.collect()
}

fn latency_of_kind_over_time(run: &Run, kind: LatencyKind, first: LatencyKind) -> Option<String> {
    let latency = |at: &Moment| at.latency(kind, first);
    type Of = fn(OtherLatency) -> Option<u64>;
    let series = |name: &str, colour: usize, look: Look, of: Of| Series {
        name: name.to_owned(),
        look,
        colour,
        points: run
            .over_time
            .iter()
            .map(|at| Point {
                x: f64::from(at.second),
                y: latency(at).and_then(of).map(|us| us as f64),
                label: String::new(),
            })
            .collect(),
    };
    let seen = |at: &&Moment| latency(at).is_some_and(|at| at.max_us.is_some());
    if run.over_time.iter().filter(seen).count() < 2 {
        return None;
    }
    let title = format!("Latency over time ({})", kind_name(kind));
    Some(
        Chart {
            title: &title,
            x: TIME,
            y: LATENCY,
            series: vec![
                series("p50", 0, Look::Line, |at| at.p50_us),
                series("p99", 3, Look::Line, |at| at.p99_us),
                series("max", 1, Look::Faint, |at| at.max_us),
            ],
            levels: Vec::new(),
            height: HEIGHT,
        }
        .figure(),
    )
}

/// Which of `count` lines are drawn: all, or as many as can be told apart, from the first to the
/// last.
fn chosen(count: usize) -> Vec<usize> {
    if count <= SERIES_MAX {
        return (0..count).collect();
    }
    let place = |at: usize| at * (count - 1) / (SERIES_MAX - 1);
    (0..SERIES_MAX).map(place).collect()
}

/// One percentile curve for each of `latencies`, solid as far as there are enough samples and
/// faint from there to the largest one. Of very many some are left out, evenly.
pub(super) fn percentile_curves(
    title: &str,
    latencies: &[(String, &Latency)],
    levels: Vec<Level>,
) -> Option<String> {
    let mut series = Vec::new();
    for (colour, at) in chosen(latencies.len()).into_iter().enumerate() {
        let (name, latency) = &latencies[at];
        let Ok(histogram) = Histogram::decode(&latency.histogram) else {
            continue;
        };
        let curve = histogram.curve();
        let Some(last) = curve.last().copied() else {
            continue;
        };
        let point = |at: &Percentile| Point::at(at.percent, at.us.max(1) as f64);
        series.push(line(name, colour, curve.iter().map(point).collect()));
        let rarest = 100.0 * (1.0 - 1.0 / histogram.samples() as f64);
        series.push(Series {
            name: String::new(),
            look: Look::Faint,
            colour,
            points: vec![
                point(&last),
                Point::at(rarest, histogram.max().max(1) as f64),
            ],
        });
    }
    if series.is_empty() {
        return None;
    }
    Some(
        Chart {
            title,
            x: AxisPlan {
                label: "percentile: so many of the samples are no slower",
                unit: Unit::Percent,
                scale: Scale::Nines,
            },
            y: LATENCY,
            series,
            levels,
            height: 380.0,
        }
        .figure(),
    )
}

/// Latency against the load that was carried, over the runs of a sweep: the knee is where it
/// rises.
pub(super) fn knee(runs: &[Run], kind: LatencyKind) -> Option<String> {
    let carried = |run: &Run| {
        let flow = match kind {
            LatencyKind::Produce | LatencyKind::Commit => run.produced.as_ref(),
            LatencyKind::EndToEnd | LatencyKind::Fetch => run.consumed.as_ref(),
        };
        flow.map(|flow| flow.records_per_second)
    };
    let mut points: Vec<(f64, &Latency)> = runs
        .iter()
        .filter_map(|run| {
            let latency = run.latencies.iter().find(|one| one.kind == kind)?;
            Some((carried(run)?, latency))
        })
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    if points.len() < 3 {
        return None;
    }
    let series = |percent: f64, colour: usize| {
        let stated = points.iter().map(|(x, latency)| Point {
            x: *x,
            y: percentile(latency, percent).map(|us| us.max(1) as f64),
            label: String::new(),
        });
        let points: Vec<Point> = stated.collect();
        let any = points.iter().any(|point| point.y.is_some());
        any.then(|| line(&percentile_name(percent), colour, points))
    };
    let series: Vec<Series> = [(50.0, 0), (99.0, 3), (99.9, 1)]
        .into_iter()
        .filter_map(|(percent, colour)| series(percent, colour))
        .collect();
    let title = format!("Latency against load ({})", kind_name(kind));
    (!series.is_empty()).then(|| {
        Chart {
            title: &title,
            x: AxisPlan {
                label: "records that were carried, a second",
                unit: Unit::PerSecond,
                scale: Scale::Linear,
            },
            y: LATENCY,
            series,
            levels: Vec::new(),
            height: 380.0,
        }
        .figure()
    })
}

/// The floors that a latency can be held against.
pub(super) fn latency_levels(floors: &[Floor]) -> Vec<Level> {
    let held = ["loopback_round_trip", "device_write_flush"];
    let of = |name: &str| {
        let floor = floors.iter().find(|floor| floor.name == name)?;
        (floor.unit == "us" && floor.value > 0.0).then(|| Level {
            name: name.replace('_', " "),
            value: floor.value,
        })
    };
    held.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_the_first_and_the_last_are_drawn() {
        assert_eq!(chosen(0), Vec::<usize>::new());
        assert_eq!(chosen(3), [0, 1, 2]);
        assert_eq!(chosen(9), [0, 1, 2, 3, 4, 5, 6, 8]);
        assert_eq!(chosen(36), [0, 5, 10, 15, 20, 25, 30, 35]);
    }
}
