//! Result of a verification, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::verify::difference::Difference;
use crate::verify::settings::CheckName;

tokometer_metrics::closed_enum! {
    /// Result of a check, named as in the text report.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Grade {
        /// Passed.
        Pass = "pass",
        /// The traffic is correct, but something can be improved.
        Warn = "WARN",
        /// Could not be determined.
        Unknown = "unknown",
        /// Failed or warned about, and accepted by the user.
        Accepted = "accepted",
        /// Failed.
        Fail = "FAIL",
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check.
    pub name: CheckName,
    /// Its result.
    pub grade: Grade,
    /// What was observed.
    pub detail: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    pub(super) fn new(name: CheckName, grade: Grade, detail: impl Into<String>) -> Check {
        Check { name, grade, detail: detail.into(), fix: None }
    }

    pub(super) fn fix(self, fix: impl Into<String>) -> Check {
        Check { fix: Some(fix.into()), ..self }
    }
}

/// One row of the latency table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `first_byte`, `first_token` or `between_tokens`.
    pub time: &'static str,
    /// 50 or 99.
    pub percentile: u8,
    /// The times, and the latency that the proxy added.
    #[serde(flatten)]
    pub difference: Difference,
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// No check failed.
    pub passed: bool,
    /// Address of the proxy.
    pub relay: String,
    /// Address of the server.
    pub upstream: String,
    /// Model of the canaries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The engine, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<&'static str>,
    /// Number of timed canaries on each side.
    pub requests: u32,
    /// Times of both sides.
    pub latency: Vec<Row>,
    /// The checks.
    pub checks: Vec<Check>,
}

impl Report {
    /// The check with this name, if it ran.
    pub fn check(&self, name: CheckName) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}

/// A table and one line per check.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = self.engine.map(|engine| format!(" on {engine}")).unwrap_or_default();
        let model = self.model.as_ref().map(|model| format!(", model {model}{engine}")).unwrap_or_default();
        writeln!(f, "direct:  {}{model}\nproxied: {}", self.upstream, self.relay)?;
        if !self.latency.is_empty() {
            writeln!(f, "\n{:<22} {:>12} {:>12}   added, ms", "", "direct, ms", "proxied, ms")?;
        }
        for row in &self.latency {
            let name = format!("{} p{}", row.time.replace('_', " "), row.percentile);
            let Difference { direct_ms, proxied_ms, added_ms, low_ms, high_ms } = row.difference;
            let added = match added_ms {
                Some(added) => format!("{added:.3}"),
                None if low_ms > 0.0 || high_ms < 0.0 => "too few canaries".to_owned(),
                None => "not significant".to_owned(),
            };
            writeln!(f, "{name:<22} {direct_ms:>12.3} {proxied_ms:>12.3}   {added} ({low_ms:.3} to {high_ms:.3})")?;
        }
        writeln!(f)?;
        for check in &self.checks {
            writeln!(f, "{:<9} {:<9} {}", check.grade.as_str(), check.name.as_str(), check.detail)?;
            if let Some(fix) = &check.fix {
                writeln!(f, "{:19} fix: {fix}", "")?;
            }
        }
        let count = |grade| self.checks.iter().filter(|check| check.grade == grade).count();
        let failed = match count(Grade::Fail) {
            0 => "No check failed".to_owned(),
            1 => "1 check failed".to_owned(),
            failed => format!("{failed} checks failed"),
        };
        match count(Grade::Warn) {
            0 => write!(f, "\n{failed}."),
            1 => write!(f, "\n{failed}; 1 warning."),
            warnings => write!(f, "\n{failed}; {warnings} warnings."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let difference =
            |added_ms, low_ms| Difference { direct_ms: 20.5, proxied_ms: 20.75, added_ms, low_ms, high_ms: 0.3 };
        let row = |time, percentile, difference| Row { time, percentile, difference };
        let checks = vec![
            Check::new(CheckName::Bytes, Grade::Pass, "the same"),
            Check::new(CheckName::Usage, Grade::Warn, "no count").fix("start it otherwise"),
            Check::new(CheckName::Counts, Grade::Fail, "none"),
        ];
        Report {
            passed: false,
            relay: "http://r".to_owned(),
            upstream: "http://u".to_owned(),
            model: Some("m".to_owned()),
            engine: Some("vLLM"),
            requests: 20,
            latency: vec![
                row("first_token", 50, difference(Some(0.25), 0.1234)),
                row("first_token", 99, difference(None, 0.1234)),
                row("between_tokens", 50, difference(None, -0.1234)),
            ],
            checks,
        }
    }

    #[test]
    fn display_is_a_table_and_one_line_per_check() {
        let expected = "\
direct:  http://u, model m on vLLM
proxied: http://r

                         direct, ms  proxied, ms   added, ms
first token p50              20.500       20.750   0.250 (0.123 to 0.300)
first token p99              20.500       20.750   too few canaries (0.123 to 0.300)
between tokens p50           20.500       20.750   not significant (-0.123 to 0.300)

pass      bytes     the same
WARN      usage     no count
                    fix: start it otherwise
FAIL      counts    none

1 check failed; 1 warning.";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn json_has_the_same_fields() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["passed"], false);
        assert_eq!(json["latency"][0]["direct_ms"], 20.5);
        assert_eq!(json["latency"][1]["added_ms"], serde_json::Value::Null);
        assert_eq!(json["checks"][1]["name"], "usage");
        assert_eq!(json["checks"][1]["grade"], "warn");
        assert_eq!(json["checks"][2]["grade"], "fail");
        assert!(json["checks"][0].get("fix").is_none());
    }
}
