//! Two results of the load tool side by side: which runs belong together, what changed by how
//! much, and what speaks against comparing them at all. Pure.

use serde_json::Value;

use super::page::quantity::{Unit, percentile_name};
use super::result::{BenchResult, Host, Latency, LatencyKind, PERCENTILES, Run};
use super::summary::{Costs, Rows, kind_name, percentile};

/// Floors of the two that differ by more than this say that the machine, not the broker, was
/// another one.
const FLOOR_RATIO_MAX: f64 = 1.25;

/// Of one: figures of one broker measured twice in a row differ by as much.
const NOISE: f64 = 0.05;

/// Why two documents are not compared.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Incomparable {
    #[error("the first is a document of schema {0:?} and the second of {1:?}")]
    Schemas(String, String),
    #[error("no run of the one has the name of a run of the other: {0} against {1}")]
    NoCommonRun(String, String),
}

/// Two results side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// What to keep in mind, one sentence each.
    pub notes: Vec<String>,
    pub floors: Vec<Figure>,
    pub runs: Vec<RunPair>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunPair {
    pub name: String,
    pub notes: Vec<String>,
    pub figures: Vec<Figure>,
}

/// One figure of both.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub name: String,
    pub unit: Unit,
    pub a: Option<f64>,
    pub b: Option<f64>,
    pub better: Better,
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Better {
    Higher,
    Lower,
}

impl Figure {
    /// The second over the first.
    pub fn ratio(&self) -> Option<f64> {
        match (self.a, self.b) {
            (Some(a), Some(b)) if a > 0.0 => Some(b / a),
            _ => None,
        }
    }

    fn verdict(&self) -> &'static str {
        let Some(ratio) = self.ratio() else {
            return "";
        };
        let gain = match self.better {
            Better::Higher => ratio,
            Better::Lower => 1.0 / ratio,
        };
        match gain {
            _ if (gain - 1.0).abs() < NOISE => "about the same",
            1.0.. => "better",
            _ => "worse",
        }
    }
}

/// Puts `b` beside `a`: ratios are `b` over `a`.
///
/// # Errors
/// [`Incomparable`] if nothing in them can be held against each other.
pub fn compare(a: &BenchResult, b: &BenchResult) -> Result<Comparison, Incomparable> {
    if a.schema != b.schema {
        return Err(Incomparable::Schemas(a.schema.clone(), b.schema.clone()));
    }
    let mut notes = host_notes(&a.host, &b.host);
    if a.tool_version != b.tool_version {
        notes.push(format!(
            "the tools are of different versions: {} and {}",
            a.tool_version, b.tool_version
        ));
    }
    for (which, result) in [("first", a), ("second", b)] {
        let warnings = result.warnings.iter();
        notes.extend(warnings.map(|warning| format!("of the {which}: {warning}")));
    }
    let floors = floor_figures(a, b);
    for floor in &floors {
        let strange = |ratio: &f64| !(1.0 / FLOOR_RATIO_MAX..=FLOOR_RATIO_MAX).contains(ratio);
        if let Some(ratio) = floor.ratio().filter(strange) {
            notes.push(format!(
                "the machine itself differs: {} of the second is {ratio:.2} times the first's",
                floor.name
            ));
        }
    }
    let pairs = pairs(a, b)?;
    for (which, result, other) in [("first", a, b), ("second", b, a)] {
        let alone = result.runs.iter().filter(|run| !has(other, run));
        for run in alone.filter(|_| result.runs.len() > 1 || other.runs.len() > 1) {
            notes.push(format!("only the {which} has a run {}", run.name));
        }
    }
    Ok(Comparison {
        notes,
        floors,
        runs: pairs.into_iter().map(|(a, b)| pair(a, b)).collect(),
    })
}

fn has(result: &BenchResult, run: &Run) -> bool {
    result.runs.iter().any(|other| other.name == run.name)
}

/// Runs of one name belong together; two single runs do in any case.
fn pairs<'a>(
    a: &'a BenchResult,
    b: &'a BenchResult,
) -> Result<Vec<(&'a Run, &'a Run)>, Incomparable> {
    if let ([one], [other]) = (&*a.runs, &*b.runs) {
        return Ok(vec![(one, other)]);
    }
    let with_namesake = |run: &'a Run| {
        let namesake = b.runs.iter().find(|other| other.name == run.name)?;
        Some((run, namesake))
    };
    let pairs: Vec<_> = a.runs.iter().filter_map(with_namesake).collect();
    let names = |result: &BenchResult| {
        let names: Vec<&str> = result.runs.iter().map(|run| &*run.name).collect();
        names.join(", ")
    };
    match pairs.is_empty() {
        true => Err(Incomparable::NoCommonRun(names(a), names(b))),
        false => Ok(pairs),
    }
}

fn pair(a: &Run, b: &Run) -> RunPair {
    let mut notes = Vec::new();
    let name = match a.name == b.name {
        true => a.name.clone(),
        false => format!("{} against {}", a.name, b.name),
    };
    notes.extend(option_notes(a, b));
    let mut figures = flow_figures(a, b);
    for kind in [
        LatencyKind::Produce,
        LatencyKind::EndToEnd,
        LatencyKind::Fetch,
        LatencyKind::Commit,
    ] {
        let of = |run: &Run| run.latencies.iter().find(|one| one.kind == kind).cloned();
        match (of(a), of(b)) {
            (Some(a), Some(b)) => figures.extend(latency_figures(&a, &b, &mut notes)),
            (None, None) => {}
            _ => notes.push(format!("only one has {} latencies", kind_name(kind))),
        }
    }
    figures.extend(cost_figures(a, b));
    for (which, run) in [("first", a), ("second", b)] {
        let warnings = run.warnings.iter();
        notes.extend(warnings.map(|warning| format!("of the {which}: {warning}")));
    }
    RunPair {
        name,
        notes,
        figures,
    }
}

fn host_notes(a: &Host, b: &Host) -> Vec<String> {
    let mut notes = Vec::new();
    let mut differ = |what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
        notes.push(format!("the machines differ: {what} {a} and {b}"));
    };
    if a.cpu_model != b.cpu_model {
        differ("CPU", &a.cpu_model, &b.cpu_model);
    }
    if a.logical_cpus != b.logical_cpus {
        differ("logical CPUs", &a.logical_cpus, &b.logical_cpus);
    }
    if a.kernel != b.kernel {
        differ("kernel", &a.kernel, &b.kernel);
    }
    // A kernel update changes what is reserved by a little.
    if a.memory_bytes.abs_diff(b.memory_bytes) > a.memory_bytes / 50 {
        let text = |bytes: u64| Unit::Bytes.text(bytes as f64);
        differ("memory", &text(a.memory_bytes), &text(b.memory_bytes));
    }
    let cpus = f64::from(a.logical_cpus.max(1));
    if (a.load_average - b.load_average).abs() > 0.25 * cpus {
        notes.push(format!(
            "the load average before the first run was {:.1} and {:.1}",
            a.load_average, b.load_average
        ));
    }
    notes
}

/// Options tell two brokers apart by their address; that is no difference in the load.
const ADDRESS_OPTIONS: [&str; 2] = ["bootstrap-server", "bootstrap"];

fn option_notes(a: &Run, b: &Run) -> Vec<String> {
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "none".to_owned(),
    };
    let names = a.options.keys();
    let more = b
        .options
        .keys()
        .filter(|name| !a.options.contains_key(*name));
    names
        .chain(more)
        .filter(|name| !ADDRESS_OPTIONS.contains(&name.as_str()))
        .filter(|name| a.options.get(*name) != b.options.get(*name))
        .map(|name| {
            format!(
                "the option {name} differs: {} and {}",
                text(a.options.get(name)),
                text(b.options.get(name))
            )
        })
        .collect()
}

fn flow_figures(a: &Run, b: &Run) -> Vec<Figure> {
    let mut figures = Vec::new();
    let flows = [
        ("produced", &a.produced, &b.produced),
        ("consumed", &a.consumed, &b.consumed),
    ];
    for (name, a, b) in flows {
        if a.is_none() && b.is_none() {
            continue;
        }
        let mut add = |what: &str, unit, better, of: fn(&super::result::Flow) -> f64| {
            figures.push(Figure {
                name: format!("{name} {what}"),
                unit,
                a: a.as_ref().map(of),
                b: b.as_ref().map(of),
                better,
            });
        };
        add("records", Unit::PerSecond, Better::Higher, |flow| {
            flow.records_per_second
        });
        add("bytes", Unit::BytesPerSecond, Better::Higher, |flow| {
            flow.bytes_per_second
        });
        add("errors", Unit::Count, Better::Lower, |flow| {
            flow.errors as f64
        });
    }
    figures
}

fn latency_figures(a: &Latency, b: &Latency, notes: &mut Vec<String>) -> Vec<Figure> {
    let kind = kind_name(a.kind);
    let mut figures = Vec::new();
    for percent in PERCENTILES {
        let name = format!("{kind} {}", percentile_name(percent));
        match (percentile(a, percent), percentile(b, percent)) {
            (Some(one), Some(other)) => figures.push(Figure {
                name,
                unit: Unit::Micros,
                a: Some(one as f64),
                b: Some(other as f64),
                better: Better::Lower,
            }),
            (None, None) => {}
            _ => notes.push(format!(
                "{name} is left out: one has too few samples ({} and {})",
                a.samples, b.samples
            )),
        }
    }
    figures
}

fn cost_figures(a: &Run, b: &Run) -> Vec<Figure> {
    let (one, other) = (Costs::of(a), Costs::of(b));
    let figures = [
        (
            "records per broker CPU second",
            Unit::Count,
            one.records_per_cpu_second,
            other.records_per_cpu_second,
            Better::Higher,
        ),
        (
            "bytes written per byte",
            Unit::Plain,
            one.written_per_byte,
            other.written_per_byte,
            Better::Lower,
        ),
        (
            "broker memory",
            Unit::Bytes,
            one.resident_bytes,
            other.resident_bytes,
            Better::Lower,
        ),
    ];
    figures
        .into_iter()
        .filter(|(_, _, a, b, _)| a.is_some() || b.is_some())
        .map(|(name, unit, a, b, better)| Figure {
            name: name.to_owned(),
            unit,
            a,
            b,
            better,
        })
        .collect()
}

fn floor_figures(a: &BenchResult, b: &BenchResult) -> Vec<Figure> {
    let beside = |floor: &super::result::Floor| {
        let other = b.floors.iter().find(|other| other.name == floor.name)?;
        let (unit, better) = match floor.unit.as_str() {
            "us" => (Unit::Micros, Better::Lower),
            "bytes/s" => (Unit::BytesPerSecond, Better::Higher),
            _ => (Unit::Plain, Better::Higher),
        };
        // The same measurement of other sizes is another one.
        (other.unit == floor.unit && other.what == floor.what).then(|| Figure {
            name: floor.name.clone(),
            unit,
            a: Some(floor.value),
            b: Some(other.value),
            better,
        })
    };
    a.floors.iter().filter_map(beside).collect()
}

impl Comparison {
    /// For a terminal; `a` and `b` are what to call the two, such as their files.
    pub fn text(&self, a: &str, b: &str) -> String {
        let mut text = format!("a: {a}\nb: {b}\n");
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        for run in &self.runs {
            text.push_str(&format!("\n{}\n", run.name));
            for note in &run.notes {
                text.push_str(&format!("note: {note}\n"));
            }
            text.push_str(&rows(&run.figures).text());
        }
        if !self.floors.is_empty() {
            text.push_str("\nFloors\n");
            text.push_str(&rows(&self.floors).text());
        }
        text
    }
}

fn rows(figures: &[Figure]) -> Rows {
    let cell = |unit: Unit, value: Option<f64>| value.map_or_else(String::new, |v| unit.text(v));
    Rows {
        columns: ["figure", ">a", ">b", ">b/a", "b is"]
            .map(str::to_owned)
            .into(),
        rows: figures
            .iter()
            .map(|figure| {
                vec![
                    figure.name.clone(),
                    cell(figure.unit, figure.a),
                    cell(figure.unit, figure.b),
                    figure
                        .ratio()
                        .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                    figure.verdict().to_owned(),
                ]
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_result::result;
    use super::*;
    use proptest::prelude::*;

    fn figure<'a>(comparison: &'a Comparison, name: &str) -> &'a Figure {
        let mut figures = comparison.runs[0].figures.iter();
        figures.find(|figure| figure.name == name).unwrap()
    }

    #[test]
    fn figures_stand_side_by_side_with_their_ratio() {
        let (a, b) = (result("x", 20_000, 1.0), result("x", 40_000, 0.25));
        let comparison = compare(&a, &b).unwrap();
        assert_eq!(comparison.notes, Vec::<String>::new());
        let records = figure(&comparison, "produced records");
        assert_eq!((records.ratio(), records.verdict()), (Some(2.0), "better"));
        let p50 = figure(&comparison, "produce p50");
        assert!((p50.ratio().unwrap() - 0.5).abs() < 0.01);
        assert_eq!(p50.verdict(), "better");
        let text = comparison.text("a.json", "b.json");
        assert!(text.starts_with("a: a.json\nb: b.json\n\nx\n"), "{text}");
        assert!(text.contains("FIGURE"), "{text}");
        assert!(text.contains("produce p99.9"), "{text}");
        assert!(text.contains("records per broker CPU second"), "{text}");
    }

    #[test]
    fn what_speaks_against_it_is_said() {
        let (a, mut b) = (result("x", 2_000, 1.0), result("x", 100_000, 1.0));
        b.host.cpu_model = "another".to_owned();
        b.host.load_average = 9.0;
        b.floors[0].value = 400.0;
        b.runs[0].options.insert("acks".to_owned(), "1".into());
        b.runs[0]
            .options
            .insert("bootstrap-server".to_owned(), "elsewhere".into());
        b.runs[0].options.insert("linger-ms".to_owned(), 5.into());
        b.runs[0].warnings.push("late".to_owned());
        let comparison = compare(&a, &b).unwrap();
        let notes: Vec<&String> = comparison
            .notes
            .iter()
            .chain(&comparison.runs[0].notes)
            .collect();
        for wanted in [
            "CPU A <CPU> and another",
            "load average before the first run was 0.5 and 9.0",
            "device_write_flush of the second is 2.00 times",
            "option acks differs: all and 1",
            "option linger-ms differs: none and 5",
            "produce p99.99 is left out: one has too few samples (2000 and 100000)",
            "of the second: late",
        ] {
            let found = notes.iter().any(|note| note.contains(wanted));
            assert!(found, "{wanted} in {notes:?}");
        }
        assert!(!notes.iter().any(|note| note.contains("bootstrap")));
        let figures = &comparison.runs[0].figures;
        assert!(!figures.iter().any(|figure| figure.name == "produce p99.99"));
    }

    #[test]
    fn runs_are_matched_by_name_and_single_ones_anyway() {
        let (mut a, mut b) = (result("1", 1000, 1.0), result("2", 1000, 1.0));
        assert_eq!(compare(&a, &b).unwrap().runs[0].name, "1 against 2");
        a.runs.push(result("3", 1000, 1.0).runs.remove(0));
        assert_eq!(
            compare(&a, &b),
            Err(Incomparable::NoCommonRun("1, 3".to_owned(), "2".to_owned()))
        );
        b.runs.push(result("3", 1000, 2.0).runs.remove(0));
        let comparison = compare(&a, &b).unwrap();
        assert_eq!(comparison.runs.len(), 1);
        assert_eq!(
            comparison.notes,
            ["only the first has a run 1", "only the second has a run 2"]
        );
        b.schema = "highwater.bench/2".to_owned();
        assert!(matches!(compare(&a, &b), Err(Incomparable::Schemas(..))));
    }

    proptest! {
        #[test]
        fn against_itself_every_figure_is_the_same(records in 0u64..3000, slower in 0.1f64..50.0) {
            let one = result("x", records, slower);
            let comparison = compare(&one, &one).unwrap();
            prop_assert!(comparison.notes.is_empty());
            for figure in comparison.runs[0].figures.iter().chain(&comparison.floors) {
                prop_assert!(figure.ratio().is_none_or(|ratio| ratio == 1.0));
                prop_assert!(["", "about the same"].contains(&figure.verdict()));
            }
        }

        #[test]
        fn the_other_way_round_every_ratio_is_its_inverse(
            records in 1u64..3000, more in 1u64..3000, slower in 0.1f64..50.0,
        ) {
            let (a, b) = (result("x", records, slower), result("x", more, 1.0));
            let (there, back) = (compare(&a, &b).unwrap(), compare(&b, &a).unwrap());
            for (one, other) in there.runs[0].figures.iter().zip(&back.runs[0].figures) {
                prop_assert_eq!(&one.name, &other.name);
                if let (Some(ratio), Some(inverse)) = (one.ratio(), other.ratio())
                    && ratio > 0.0 && inverse > 0.0
                {
                    prop_assert!((ratio * inverse - 1.0).abs() < 1e-9);
                }
            }
        }
    }
}
