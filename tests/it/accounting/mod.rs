//! Tenants, prices and budgets.

mod claims;
mod config;
mod counted;
mod latency;
mod naive;
mod priced;
mod program;

use std::sync::Arc;

use tokometer_observe::measure::{Record, Targets};
use tokometer_telemetry::accounting::{Accounting, Budget, Limit, Price, Prices, Settings, TenantForm, Tenants};

use crate::export::records;

/// Settings with plain tenant labels, at most `most` of them.
fn plain(most: usize) -> Settings {
    Settings { tenants: Some(Tenants { form: TenantForm::Plain, most, ..Tenants::default() }), ..Settings::default() }
}

/// Prices per million tokens: 1 USD input, 0.1 USD cached input, 3 USD output; `free*` costs nothing.
fn prices() -> Prices {
    let price =
        |model: &str, input, cached_input, output| Price { model: model.to_owned(), input, cached_input, output };
    Prices {
        currency: "USD".to_owned(),
        models: vec![price("free*", 0.0, None, 0.0), price("m*", 1.0, Some(0.1), 3.0)],
    }
}

fn budget(name: &str, limit: Limit) -> Budget {
    Budget { name: name.to_owned(), limit, models: Vec::new(), tenants: Vec::new() }
}

fn accounting(settings: Settings) -> Accounting {
    Accounting::new(settings).expect("no key file is configured")
}

/// A response of this model: 1000 input tokens, 600 of them cached, and 101 output tokens.
fn response(model: &str) -> Record {
    records::good(model)
}

/// `record` with this tenant.
fn by(tenant: &str, record: Record) -> Record {
    let targets = Targets { tenant: Some(tenant.into()), ..Targets::default() };
    record.with(|r| r.request.targets = Some(Box::new(targets)))
}

/// `record` with labels changed by `change`.
fn labelled(record: Record, change: impl Fn(&mut tokometer_observe::measure::Labels)) -> Record {
    let mut labels = (*record.labels).clone();
    change(&mut labels);
    Record { labels: Arc::new(labels), ..record }
}
