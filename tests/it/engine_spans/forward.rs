use std::sync::Arc;
use std::time::Duration;

use tokometer_engine::engine_spans::{Reply, Settings, Unsent};

use super::*;

fn later() -> Reply {
    Reply::Later { after: Some(Duration::from_millis(1)), why: "busy".to_owned() }
}

#[test]
fn deferred_messages_are_retried_in_order() {
    let kept = Arc::new(FakeCollector::default());
    *kept.replies.lock().unwrap() = vec![Reply::Taken { rejected: 0 }, later(), later(), later()];
    let (receiver, _) = receive(Settings::default(), Some(Arc::clone(&kept)));
    for tag in 0..3 {
        assert_eq!(post_traces(receiver.addresses()[0], &message(2, tag)), 200);
    }
    let measurements = receiver.measurements();
    until("all", || measurements.forwarded.get() == 6);
    let sent: Vec<Vec<u8>> = kept.messages.lock().unwrap().iter().map(|(bytes, _)| bytes.to_vec()).collect();
    assert_eq!(sent, [message(2, 0), message(2, 1), message(2, 2)]);
    receiver.stop(Duration::from_secs(1));
}

#[test]
fn unaccepted_spans_are_counted_by_reason() {
    let kept = Arc::new(FakeCollector::default());
    let refused = Reply::Refused { why: "no".to_owned() };
    *kept.replies.lock().unwrap() = vec![later(), Reply::Taken { rejected: 3 }, refused];
    let settings = Settings { forward_for: Duration::ZERO, ..Settings::default() };
    let (receiver, _) = receive(settings, Some(Arc::clone(&kept)));
    for tag in 0..4 {
        assert_eq!(post_traces(receiver.addresses()[0], &message(10, tag)), 200);
    }
    let measurements = receiver.measurements();
    until("all", || measurements.forwarded.get() == 17);
    let counts = [Unsent::Refused, Unsent::Rejected, Unsent::GivenUp, Unsent::Shutdown]
        .map(|why| measurements.unsent(why).get());
    assert_eq!(counts, [10, 3, 10, 0]);
    receiver.stop(Duration::from_secs(1));
}

#[test]
fn stop_waits_for_messages_only_until_its_limit() {
    let kept = Arc::new(FakeCollector::default());
    let (receiver, _) = receive(Settings::default(), Some(Arc::clone(&kept)));
    let gate = kept.gate.try_lock().unwrap();
    for tag in 0..5 {
        assert_eq!(post_traces(receiver.addresses()[0], &message(10, tag)), 200);
    }
    let measurements = receiver.measurements();
    let begun = std::time::Instant::now();
    receiver.stop(Duration::from_millis(200));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!((measurements.forwarded.get(), measurements.unsent(Unsent::Shutdown).get()), (0, 50));
    drop(gate);
}

#[test]
fn spans_are_accepted_without_a_collector() {
    let (receiver, _) = receive(Settings::default(), None);
    assert_eq!(post_traces(receiver.addresses()[0], &message(10, 1)), 200);
    let measurements = receiver.measurements();
    assert_eq!((measurements.received.get(), measurements.forwarded.get()), (10, 0));
    until("room", || measurements.waiting_bytes() == 0);
    receiver.stop(Duration::from_secs(1));
}
