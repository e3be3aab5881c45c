//! Placeholders in the expressions of the definitions.
//!
//! Definitions contain PromQL with these placeholders in braces:
//!
//! - `{Requests}`: the series of the metric with this identifier in the catalog, for the selected processes and models;
//!   `{Requests, outcome="ok"}`: with additional matchers;
//! - `{quantile 0.99 by (outcome) over 5m DecodeRate, outcome="ok"}`: a function of a metric; `by`, `over` and the
//!   matchers are optional. `quantile`, `mean`, `sum_rate` (the rate of the sum) and `buckets` (for a heatmap) apply to
//!   a histogram. They use classic buckets or, if Prometheus stores none, native buckets; of all processes, they use the
//!   series that the rules record ([`crate::fleet`]). `name` is only the metric's name. The suffix ` of peers` selects
//!   all processes of the selected jobs and namespaces;
//! - `{engine_state}`: an expression that the dashboard, a panel's `limit` or `shared.yaml` defines;
//! - `{period_days}`, `{period_seconds}`, `{groups}` (labels), `{objectives}` (matchers), `{reading_slow}` and the
//!   other decode rates of `slo.reading`: the settings of the objectives; `{slow_share}`: the limit of the alert on slow
//!   pods.

use tokometer_metrics::table::{Key, Metric};
use tokometer_telemetry::slo::Settings;

use crate::alerting::SLOW_SHARE;
use crate::fleet;
use crate::placeholder;
use crate::placeholder::Definitions;

/// The processes selected by the variables.
const SELECTED: &str = r#"job=~"$job",namespace=~"$namespace",pod=~"$pod",instance=~"$instance""#;

/// Added to [`SELECTED`]: no process while the variables select all of them. Then `(.*|~)...+..` matches every instance;
/// while a pod or an instance is selected, the pattern contains `~` or the selected instance with other text around it.
const CHOSEN: &str = r#",instance!~"($pod~)..$instance..""#;

/// Every process of the selected jobs and namespaces, for comparison with the selected processes.
const PEERS: &str = r#"job=~"$job",namespace=~"$namespace",pod=~".*",instance=~".+""#;

/// Window of a rate. Grafana sets it to at least four scrape intervals and at least the interval between two points.
const WINDOW: &str = "$__rate_interval";

/// Labels that a scrape adds.
const SCRAPE_LABELS: [&str; 4] = ["job", "namespace", "pod", "instance"];

/// The expressions defined by the objectives' settings.
pub(super) fn of_settings(settings: &Settings) -> Definitions {
    let (rules, reading) = (&settings.rules, settings.reading);
    let labels: Vec<&str> = [Key::Slo.label()].into_iter().chain(rules.group_by.iter().map(String::as_str)).collect();
    // Only these labels have a dashboard variable.
    let matched = labels.iter().filter(|label| ["slo", "namespace", "model"].contains(label));
    let definitions = [
        ("period_days", rules.period_days.to_string()),
        ("period_seconds", (u64::from(rules.period_days) * 86_400).to_string()),
        ("groups", labels.join(", ")),
        ("group_legend", labels.iter().map(|label| format!("{{{{{label}}}}}")).collect::<Vec<_>>().join(" / ")),
        ("slow_share", SLOW_SHARE.to_string()),
        ("reading_slow", reading.slow.to_string()),
        ("reading_comfortable", reading.comfortable.to_string()),
        ("reading_fast", reading.fast.to_string()),
        ("objectives", matched.map(|label| format!("{label}=~\"${label}\"")).collect::<Vec<_>>().join(",")),
    ];
    definitions.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

/// Expands placeholders; the definitions are searched in order.
///
/// # Errors
/// The invalid placeholder, and why it is invalid.
pub(super) fn expand(text: &str, definitions: &[&Definitions]) -> Result<String, String> {
    placeholder::expand(text, definitions, |placeholder| Ok(Function::parse(placeholder)?.promql()))
}

/// A metric, and the function applied to it.
#[derive(Clone, Debug)]
struct Function<'a> {
    /// Empty if the placeholder is only a metric.
    name: &'a str,
    /// The argument of `quantile`.
    quantile: &'a str,
    metric: &'static Metric,
    /// Labels by which the function aggregates.
    by: &'a str,
    window: &'a str,
    /// Matchers of the metric's own labels, each preceded by a comma.
    matchers: String,
    processes: &'static str,
}

impl<'a> Function<'a> {
    fn parse(text: &'a str) -> Result<Function<'a>, String> {
        let (text, processes) = text.strip_suffix(" of peers").map_or((text, SELECTED), |text| (text, PEERS));
        let is_id = |text: &str| text.starts_with(|c: char| c.is_ascii_uppercase());
        let word = |text: &'a str| text.split_once(' ').unwrap_or((text, ""));
        let (name, mut rest) = if is_id(text) { ("", text) } else { word(text) };
        let mut quantile = "";
        match name {
            "" | "mean" | "sum_rate" | "buckets" | "name" => {}
            "quantile" => (quantile, rest) = word(rest),
            _ => return Err("is neither a metric, a function nor a definition".to_owned()),
        }
        let mut by = "";
        if let Some(clause) = rest.strip_prefix("by (") {
            (by, rest) = clause.split_once(") ").ok_or("`by (` has no closing )")?;
        }
        let mut window = WINDOW;
        if let Some(clause) = rest.strip_prefix("over ") {
            (window, rest) = word(clause);
        }
        let (id, matchers) = rest.split_once(',').unwrap_or((rest, ""));
        let metric = placeholder::metric(id)?;
        let matchers: Vec<&str> = matchers.split(", ").map(str::trim).filter(|text| !text.is_empty()).collect();
        let matched = matchers.iter().map(|matcher| matcher.split(['=', '!']).next().unwrap_or_default());
        let known = |label: &str| {
            let mut keys = metric.keys().chain(metric.optional.iter().copied());
            SCRAPE_LABELS.contains(&label) || keys.any(|key| key.label() == label)
        };
        if let Some(label) = by.split(", ").filter(|by| !by.is_empty()).chain(matched).find(|label| !known(label)) {
            return Err(format!("{id} has no label `{label}`"));
        }
        let matchers = matchers.iter().map(|matcher| format!(",{matcher}")).collect();
        Ok(Function { name, quantile, metric, by, window, matchers, processes })
    }

    /// Selector of the metric's series; `suffix` is appended to the metric's name.
    fn series(&self, suffix: &str) -> String {
        format!("{}{suffix}{}", self.metric.prometheus().full(), self.matching())
    }

    /// The matchers, in braces.
    fn matching(&self) -> String {
        let models = [Key::ResponseModel, Key::Model].into_iter();
        let models = models.filter(|model| self.metric.keys().any(|key| key == *model));
        let model: String = models.map(|key| format!(",{}=~\"$model\"", key.label())).collect();
        format!("{{{}{model}{}}}", self.processes, self.matchers)
    }

    /// The rates of a histogram's series: the recorded rates of all processes, or the series of the selected processes.
    /// A dashboard would otherwise read the buckets of every process.
    fn rates(&self, suffix: &str) -> String {
        let (series, window) = (format!("{}{suffix}", self.metric.prometheus().full()), self.window);
        let all = format!("avg_over_time({}{}[{window}])", fleet::aggregated(&series), self.matching());
        if self.processes == PEERS {
            return all;
        }
        let matching = self.matching();
        format!("{all} or rate({series}{}{CHOSEN}}}[{window}])", matching.trim_end_matches('}'))
    }

    fn promql(&self) -> String {
        let by = if self.by.is_empty() { String::new() } else { format!(" by ({})", self.by) };
        match self.name {
            "name" => self.metric.prometheus().full(),
            // Of several models of a process, the slowest.
            "quantile" if self.by.split(", ").any(|label| label == "instance") => {
                let recorded = fleet::by_process(&self.metric.prometheus().full(), self.quantile);
                format!("min{by} ({recorded}{})", self.matching())
            }
            "quantile" => {
                let quantile = self.quantile;
                let with_le = if self.by.is_empty() { "le".to_owned() } else { format!("{}, le", self.by) };
                format!(
                    "histogram_quantile({quantile}, sum by ({with_le}) ({}))\nor\n\
                     histogram_quantile({quantile}, sum{by} ({}))",
                    self.rates("_bucket"),
                    self.rates("")
                )
            }
            "sum_rate" => self.part("sum", &by),
            "mean" => format!("({})\n/\n(({}) > 0)", self.part("sum", &by), self.part("count", &by)),
            // `on ()`: native buckets only if there are no classic ones.
            "buckets" => {
                format!("sum by (le) ({})\nor on ()\nsum ({})", self.rates("_bucket"), self.rates(""))
            }
            _ => self.series(""),
        }
    }

    /// The rate of a histogram's `sum` or `count`.
    fn part(&self, part: &str, by: &str) -> String {
        let (classic, native) = (self.rates(&format!("_{part}")), self.rates(""));
        format!("sum{by} ({classic}) or histogram_{part}(sum{by} ({native}))")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions(all: &[(&str, &str)]) -> Definitions {
        all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn metric_becomes_a_selector_of_the_selected_processes() {
        let expr = r#"sum by (phase) ({InFlight, phase="streaming"}) / on () {worst} > up{job="{x}"}"#;
        let expected = r#"sum by (phase) (tokometer_in_flight{job=~"$job",namespace=~"$namespace",pod=~"$pod",instance=~"$instance",phase="streaming"}) / on () max (up) > up{job="{x}"}"#;
        assert_eq!(expand(expr, &[&definitions(&[("worst", "max ({up})"), ("up", "up")])]).unwrap(), expected);
    }

    #[test]
    fn quantile_reads_classic_and_native_histograms() {
        let found = expand("{quantile 0.1 by (source) over 5m DecodeRate of peers}", &[]).unwrap();
        assert!(found.starts_with("histogram_quantile(0.1, sum by (source, le) (avg_over_time(fleet:"), "{found}");
        assert!(found.contains("\nor\nhistogram_quantile(0.1, sum by (source) (avg_over_time(fleet:"), "{found}");
        assert_eq!(found.matches(r#"pod=~".*""#).count(), 2, "{found}");
        assert_eq!(found.matches("[5m]").count(), 2, "{found}");
    }

    #[test]
    fn quantile_by_process_is_recorded() {
        let found = expand("{quantile 0.1 by (pod, instance) DecodeRate}", &[]).unwrap();
        let expected = "min by (pod, instance) (pod:tokometer_decode_tokens_per_second:q1{job=~";
        assert!(found.starts_with(expected), "{found}");
    }

    #[test]
    fn buckets_of_processes_are_read_only_of_selected_ones() {
        let found = expand("{mean DeliveryBlocked} > {buckets DecodeRate}", &[]).unwrap();
        let raw: Vec<&str> = found.split(" or rate(").skip(1).collect();
        assert_eq!(raw.len(), 6, "{found}");
        assert!(raw.iter().all(|rest| rest.split('}').next().unwrap().ends_with(CHOSEN)), "{found}");
    }

    #[test]
    fn wrong_placeholder_is_reported_with_its_fault() {
        let cycle = definitions(&[("a", "1 + {b}"), ("b", "{a}")]);
        for (expr, fault) in [
            ("sum ({Unknown})", "{Unknown}: `Unknown` is not the identifier of a metric"),
            ("{median DecodeRate}", "{median DecodeRate}: is neither a metric, a function nor a definition"),
            ("{mean by (slo) DecodeRate}", "DecodeRate has no label `slo`"),
            (r#"{Requests, verdict="bad"}"#, "Requests has no label `verdict`"),
            ("{mean by (slo DecodeRate}", "`by (` has no closing )"),
            ("{InFlight", "has no closing }"),
            ("{a}", "is defined by itself"),
        ] {
            let why = expand(expr, &[&cycle]).unwrap_err();
            assert!(why.contains(fault), "{expr}: {why}");
        }
    }
}
