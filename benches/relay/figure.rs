//! What was measured, what it is held against, and the table of it all.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Value, json};

use crate::machine::Machine;

/// One line of the table.
#[derive(Debug)]
pub struct Figure {
    /// What was measured.
    pub what: Cow<'static, str>,
    /// The gateway's side.
    pub value: f64,
    /// What was measured beside it, and is the base of the ratio or the difference.
    pub beside: Option<f64>,
    /// Of both.
    pub unit: &'static str,
    /// What the goal is about.
    judged: Judged,
    goal: Option<Goal>,
}

#[derive(Debug, Clone, Copy)]
enum Judged {
    Value,
    Ratio,
    Difference,
}

#[derive(Debug, Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Figure {
    /// A figure that stands for itself.
    pub fn value(what: impl Into<Cow<'static, str>>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, beside: None, unit, judged: Judged::Value, goal: None }
    }

    /// A figure that counts as a multiple of what was measured `beside` it.
    pub fn ratio(what: impl Into<Cow<'static, str>>, value: f64, beside: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, beside: Some(beside), unit, judged: Judged::Ratio, goal: None }
    }

    /// A figure that counts as what it adds to what was measured `beside` it.
    pub fn difference(what: impl Into<Cow<'static, str>>, value: f64, beside: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, beside: Some(beside), unit, judged: Judged::Difference, goal: None }
    }

    /// What was measured beside it is shown, and the goal is about the figure itself.
    pub fn on_its_own(self) -> Self {
        Self { judged: Judged::Value, ..self }
    }

    /// The goal is met from `least` on.
    pub fn at_least(self, least: f64) -> Self {
        Self { goal: Some(Goal::AtLeast(least)), ..self }
    }

    /// The goal is met up to `most`.
    pub fn at_most(self, most: f64) -> Self {
        Self { goal: Some(Goal::AtMost(most)), ..self }
    }

    fn judged(&self) -> f64 {
        match (self.judged, self.beside) {
            (Judged::Ratio, Some(beside)) => self.value / beside,
            (Judged::Difference, Some(beside)) => self.value - beside,
            _ => self.value,
        }
    }

    fn verdict(&self) -> &'static str {
        match self.goal {
            None => "",
            // Written so that a figure that is not a number misses its goal.
            Some(Goal::AtLeast(least)) if self.judged() >= least => "pass",
            Some(Goal::AtMost(most)) if self.judged() <= most => "pass",
            Some(_) => "MISS",
        }
    }
}

/// All figures, in the order of the rows.
#[derive(Debug, Default)]
pub struct Table {
    figures: Vec<(&'static str, Figure)>,
    failures: Vec<(&'static str, String)>,
}

impl Table {
    /// A row was measured.
    pub fn add(&mut self, row: &'static str, figures: Vec<Figure>) {
        self.figures.extend(figures.into_iter().map(|figure| (row, figure)));
    }

    /// A row could not be measured.
    pub fn fail(&mut self, row: &'static str, error: &anyhow::Error) {
        self.failures.push((row, format!("{error:#}")));
    }

    /// An error if a row could not be measured. A goal that was missed is a figure, and no error.
    pub fn outcome(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.failures.is_empty(), "{} rows could not be measured", self.failures.len());
        Ok(())
    }

    /// Everything, for machines.
    pub fn to_json(&self, machine: &Machine, quick: bool) -> Value {
        let figures = self.figures.iter().map(|(row, figure)| {
            let goal = figure.goal.map(|goal| match goal {
                Goal::AtLeast(least) => json!({ "at_least": least }),
                Goal::AtMost(most) => json!({ "at_most": most }),
            });
            json!({
                "row": row, "what": figure.what, "value": figure.value, "beside": figure.beside, "unit": figure.unit,
                "judged": figure.judged(), "goal": goal, "met": goal.as_ref().map(|_| figure.verdict() == "pass"),
            })
        });
        let failures = self.failures.iter().map(|(row, error)| json!({ "row": row, "error": error }));
        json!({
            "machine": machine.to_json(), "quick": quick,
            "figures": figures.collect::<Vec<_>>(), "failures": failures.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![["row", "what", "sluice", "beside", "", "ratio/diff", "goal", ""].map(str::to_owned)];
        for (row, figure) in &self.figures {
            let judged = match figure.judged {
                Judged::Value => String::new(),
                Judged::Ratio => format!("x {:.3}", figure.judged()),
                Judged::Difference => format!("{:+.3}", figure.judged()),
            };
            let goal = match figure.goal {
                None => String::new(),
                Some(Goal::AtLeast(least)) => format!(">= {least}"),
                Some(Goal::AtMost(most)) => format!("<= {most}"),
            };
            lines.push([
                (*row).to_owned(),
                figure.what.to_string(),
                number(figure.value),
                figure.beside.map(number).unwrap_or_default(),
                figure.unit.to_owned(),
                judged,
                goal,
                figure.verdict().to_owned(),
            ]);
        }
        let widths: Vec<usize> =
            (0..8).map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
        for line in &lines {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                // Figures to the right, words to the left.
                if matches!(column, 2 | 3 | 5) {
                    write!(f, "{cell:>width$}  ")?
                } else {
                    write!(f, "{cell:<width$}  ")?
                }
            }
            writeln!(f)?;
        }
        for (row, error) in &self.failures {
            writeln!(f, "{row}: not measured: {error}")?;
        }
        Ok(())
    }
}

/// About four digits.
fn number(value: f64) -> String {
    let decimals = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        3
    };
    format!("{value:.decimals$}")
}

/// The value that `share` of `values` do not exceed. Not a number if there are none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}
