//! Requests that clients could not send during an outage count as bad.

use std::time::{Duration, Instant};

use tokometer_observe::measure::Record;
use tokometer_telemetry::slo::{Down, Evaluator, Reason, Settings};

use crate::export::records;

/// Length of the healthy time and of the outage, seconds.
const TIME: u64 = 600;

#[test]
fn outage_counts_the_lost_requests_of_each_model_as_bad() {
    let evaluate = Evaluator::new(Settings::default());
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    for second in 0..TIME {
        let model = if second % 3 == 0 { "rare" } else { "busy" };
        evaluate.evaluate(&Record { started: at(second), sequence: second, ..records::good(model) });
        evaluate.lose(&[None], at(second));
    }
    let lost = |objective: &str, model: &str| {
        let evaluated = evaluate.evaluated();
        let of = evaluated.iter().find(|one| one.objective == objective && one.model.as_deref() == Some(model));
        of.expect("its counts").counts.bad.get(&Reason::Lost).copied()
    };
    for second in 1..=TIME {
        evaluate.lose(&[Some(Down { lasts: Duration::from_secs(second), waiting: 0 })], at(TIME + second));
    }
    for objective in ["availability", "goodput"] {
        let (rare, busy) = (lost(objective, "rare").unwrap(), lost(objective, "busy").unwrap());
        assert!(rare.abs_diff(200) < 10 && busy.abs_diff(400) < 20, "{objective}: {rare} and {busy}");
    }
    assert_eq!([lost("ttft", "busy"), lost("stall", "busy"), lost("decode_rate", "busy")], [None; 3]);
    let before = lost("availability", "busy");
    evaluate.lose(&[None], at(2 * TIME + 1));
    evaluate.lose(&[None], at(2 * TIME + 600));
    assert_eq!(lost("availability", "busy"), before, "nothing is lost after the outage");
}
