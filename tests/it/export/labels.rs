//! Model names as label values: which names are kept, which become `other`, and that no token count is lost.

use std::sync::Arc;
use std::time::Duration;

use tokometer_decode::Route;
use tokometer_observe::measure::{Gap, Labels, Outcome, Record, Sink};
use tokometer_telemetry::export::{Exporters, Profile, Prometheus, Settings};

use super::text::{Form, Samples};
use super::{records, text};
use crate::allocation::held_after;
use crate::scrape::reading::until;

fn start(settings: Settings) -> Arc<Exporters> {
    records::start(&Settings { listeners: records::settings().listeners, ..settings }).unwrap()
}

fn samples(exporters: &Exporters) -> Samples {
    let page = exporters.scrape(Some("application/openmetrics-text;version=1.0.0")).body;
    text::parse(&String::from_utf8(page).unwrap(), Form::OpenMetrics).samples
}

/// The sum of the series with this name, of one model or of all. `None` if there is no such series.
fn sum(samples: &Samples, name: &str, model: Option<&str>) -> Option<f64> {
    let of_model = |labels: &std::collections::BTreeMap<String, String>| {
        model.is_none_or(|model| labels.get("gen_ai_request_model").is_some_and(|have| have == model))
    };
    let found: Vec<f64> =
        samples.iter().filter(|((n, l), _)| n == name && of_model(l)).map(|(_, value)| *value).collect();
    (!found.is_empty()).then(|| found.iter().sum())
}

fn refused(model: &str) -> Record {
    let labels = Labels { response_model: Some(model.into()), ..records::labels(model) };
    let record = records::busy(model).with(|r| {
        r.outcome = Outcome::Http4xx;
        r.response.status = Some(404);
    });
    Record { labels: Arc::new(labels), ..record }
}

#[test]
fn names_in_errors_take_no_place_from_real_models() {
    let exporters = start(Settings { max_models: 2, ..Settings::default() });
    for n in 0..200 {
        exporters.record(&Arc::new(refused(&format!("junk-{n}"))));
        exporters.record(&Arc::new(records::gave_up(&format!("junk-{n}"))));
    }
    exporters.record(&Arc::new(records::good("real")));
    exporters.record(&Arc::new(records::gave_up("real")));
    let samples = samples(&exporters);
    let requests = |model| sum(&samples, "tokometer_requests_total", model);
    assert_eq!(
        (requests(Some("real")), requests(Some("other")), requests(None)),
        (Some(2.0), Some(400.0), Some(402.0))
    );
    assert_eq!(sum(&samples, "tokometer_output_tokens_total", Some("real")), Some(101.0));
}

#[test]
fn first_streams_of_a_model_count_under_its_name() {
    let exporters = start(Settings::default());
    let gap = Gap { gap: Duration::from_millis(10), tokens: Some(1) };
    // Two streams begin before their label set is created.
    let streams: Vec<_> = (0..2).map(|_| exporters.live(&records::labels("new")).unwrap()).collect();
    for stream in &streams {
        stream.progress(&[gap; 8], 9);
    }
    assert_eq!(sum(&samples(&exporters), "tokometer_live_tokens_total", Some("new")), Some(18.0));
    for stream in &streams {
        stream.progress(&[gap; 8], 8);
        stream.reconcile(84);
    }
    drop(streams);
    for _ in 0..2 {
        exporters.record(&Arc::new(records::good("new")));
    }
    for _ in 0..2 {
        let samples = samples(&exporters);
        assert_eq!(sum(&samples, "tokometer_live_tokens_total", None), Some(202.0));
        assert_eq!(sum(&samples, "tokometer_live_tokens_total", Some("new")), Some(202.0));
        assert_eq!(sum(&samples, "tokometer_inter_token_latency_seconds_count", Some("new")), Some(32.0));
        assert_eq!(sum(&samples, "tokometer_output_tokens_total", Some("new")), Some(202.0));
    }
}

#[test]
fn first_streams_with_equal_labels_share_their_counts() {
    let exporters = start(Settings::default());
    let gap = Gap { gap: Duration::from_millis(1), tokens: Some(1) };
    let stream = || {
        let live = exporters.live(&records::labels("m")).unwrap();
        live.progress(&[gap], 1);
        live
    };
    let first = stream();
    let (_second, held) = held_after(stream);
    assert_eq!(held, 0, "bytes of a further stream");
    drop(first);
    for tokens in [2.0, 3.0] {
        assert_eq!(sum(&samples(&exporters), "tokometer_live_tokens_total", None), Some(tokens));
        stream();
    }
}

#[test]
fn streams_over_the_waiting_limit_lose_no_tokens() {
    const STREAMS: u64 = 6000;
    let exporters = start(Settings::default());
    for n in 0..STREAMS {
        let live = exporters.live(&records::labels(&format!("junk-{n}"))).unwrap();
        live.progress(&[Gap { gap: Duration::from_millis(1), tokens: Some(1) }], 2);
    }
    for _ in 0..2 {
        let samples = samples(&exporters);
        assert_eq!(sum(&samples, "tokometer_live_tokens_total", None), Some(2.0 * STREAMS as f64));
        assert_eq!(sum(&samples, "tokometer_chunk_gap_seconds_count", None), Some(STREAMS as f64));
        let names = samples.keys().filter(|(name, _)| name == "tokometer_live_tokens_total").count();
        // At most 64 model names, `other`, and one series for the streams over the waiting limit.
        assert!(names <= 66, "{names} series");
    }
}

#[test]
fn full_table_replaces_idle_names_but_not_open_streams() {
    let exporters = start(Settings { max_models: 2, label_idle: Duration::from_millis(1), ..Settings::default() });
    let output = |model| sum(&samples(&exporters), "tokometer_output_tokens_total", Some(model));
    let open = exporters.live(&records::labels("open")).unwrap();
    open.progress(&[], 1);
    exporters.record(&Arc::new(records::good("open")));
    exporters.record(&Arc::new(records::good("idle")));
    assert_eq!((output("open"), output("idle")), (Some(101.0), Some(101.0)));
    // After one millisecond, the second name has been idle for long enough to be replaced.
    until("the new name has a place", || {
        exporters.record(&Arc::new(records::good("new")));
        output("new")
    });
    assert_eq!((output("open"), output("idle")), (Some(101.0), None));
    // The replaced name returns and counts from zero.
    until("the name returns", || {
        exporters.record(&Arc::new(records::good("idle")));
        output("idle")
    });
    assert_eq!((output("open"), output("idle"), output("new")), (Some(101.0), Some(101.0), None));
    open.progress(&[], 2);
    assert_eq!(sum(&samples(&exporters), "tokometer_live_tokens_total", Some("open")), Some(3.0));
}

#[test]
fn name_with_traffic_replaces_an_open_stream_whose_tokens_become_other() {
    for settings in
        [Settings { max_models: 2, ..Settings::default() }, Settings { max_label_sets: 2, ..Settings::default() }]
    {
        let exporters = start(settings);
        let live = |model| sum(&samples(&exporters), "tokometer_live_tokens_total", model);
        let open = ["junk-1", "junk-2"].map(|junk| {
            let streams = [0, 1].map(|_| exporters.live(&records::labels(junk)).unwrap());
            streams.iter().for_each(|stream| stream.progress(&[], 1));
            streams
        });
        assert_eq!((live(None), live(Some("other"))), (Some(4.0), None));
        open.iter().flatten().for_each(|stream| stream.progress(&[], 10));
        let requests = |model| sum(&samples(&exporters), "tokometer_requests_total", model);
        for _ in 0..40 {
            exporters.record(&Arc::new(records::good("real")));
        }
        let (real, other) = (requests(Some("real")).unwrap(), requests(Some("other")).unwrap());
        assert!(real >= 8.0 && real + other == 40.0, "{real} and {other}");
        // One of the names was replaced before its last 20 tokens were in its series.
        assert_eq!(live(Some("other")), Some(20.0));
        open.iter().flatten().for_each(|stream| stream.progress(&[], 100));
        assert_eq!(live(Some("other")), Some(220.0));
        assert_eq!(live(None), Some(220.0 + 222.0));
        drop(open);
        assert_eq!(live(None), Some(220.0 + 222.0));
    }
}

#[test]
fn label_sets_over_the_cap_replace_idle_ones() {
    let settings = Settings { max_label_sets: 2, label_idle: Duration::from_millis(1), ..Settings::default() };
    let exporters = start(settings);
    let models = || {
        let samples = samples(&exporters);
        let series = samples.into_keys().filter(|(name, _)| name == "tokometer_output_tokens_total");
        let mut names: Vec<String> =
            series.filter_map(|(_, labels)| labels.get("gen_ai_request_model").cloned()).collect();
        names.sort();
        names
    };
    exporters.record(&Arc::new(records::good("a")));
    exporters.record(&Arc::new(records::good("b")));
    until("the new set has a place", || {
        exporters.record(&Arc::new(records::good("c")));
        models().contains(&"c".to_owned()).then_some(())
    });
    let own = models().into_iter().filter(|model| model != "other");
    assert_eq!(own.collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn sums_of_the_fleet_profile_keep_the_counts_of_replaced_label_sets() {
    let settings = Settings {
        prometheus: Prometheus { profile: Profile::Fleet, ..Prometheus::default() },
        max_label_sets: 2,
        label_idle: Duration::from_millis(1),
        ..Settings::default()
    };
    let exporters = start(settings);
    // Both names are names of one model, whose series are added up.
    let of = |requested: &str, model: &str| {
        let labels = Labels { request_model: Some(requested.into()), ..records::labels(model) };
        Arc::new(Record { labels: Arc::new(labels), ..records::good(model) })
    };
    let page = || samples(&exporters);
    let of_model = |samples: &Samples, name: &str, model: &str| {
        let found = samples.iter().filter(|((n, l), _)| n == name && l["gen_ai_response_model"] == model);
        found.map(|(_, value)| *value).collect::<Vec<f64>>()
    };
    exporters.record(&of("first", "m"));
    exporters.record(&of("second", "m"));
    assert_eq!(of_model(&page(), "tokometer_output_tokens_total", "m"), [202.0]);
    let mut tokens = 202.0;
    until("a third set has replaced one of them", || {
        exporters.record(&of("third", "other-model"));
        let replaced = !of_model(&page(), "tokometer_output_tokens_total", "other-model").is_empty();
        replaced.then_some(())
    });
    assert_eq!(of_model(&page(), "tokometer_output_tokens_total", "m"), [tokens]);
    assert_eq!(of_model(&page(), "tokometer_decode_tokens_per_second_count", "m"), [2.0]);
    for requested in ["second", "first"] {
        exporters.record(&of(requested, "m"));
        tokens += 101.0;
    }
    let samples = page();
    let all: f64 = ["m", "other"].iter().flat_map(|m| of_model(&samples, "tokometer_output_tokens_total", m)).sum();
    assert!(all >= tokens, "{all} of {tokens}");
}

#[test]
fn requests_without_records_are_counted_by_operation_and_outcome() {
    let exporters = start(Settings::default());
    exporters.record(&Arc::new(records::good("real")));
    let labels = Labels { route: Route::Chat, ..Labels::default() };
    exporters.count_unrecorded(&labels, Outcome::Ok, 99_000);
    exporters.count_unrecorded(&labels, Outcome::Http5xx, 999);
    let samples = samples(&exporters);
    assert_eq!(sum(&samples, "tokometer_requests_total", None), Some(100_000.0));
    let failed = samples.iter().filter(|((name, labels), _)| {
        name == "tokometer_requests_total"
            && labels["outcome"] == "http_5xx"
            && labels["gen_ai_operation_name"] == "chat"
    });
    assert_eq!(failed.map(|(_, value)| value).sum::<f64>(), 999.0);
}
