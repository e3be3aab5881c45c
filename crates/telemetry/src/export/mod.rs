//! The exporters that convert request records to Prometheus pages and OTLP batches.

mod advice;
mod collect;
mod exporters;
mod labels;
mod otlp;
mod page;
mod recorder;
mod series;
mod settings;
mod trace;

pub use collect::{Process, open_descriptors};
pub use exporters::{Error, Exporters};
pub use labels::failure::outcome_class;
pub use otlp::{CollectorClient, usable_endpoint};
pub use page::{Page, Profile, protobuf};
pub use series::histograms::{Histogram, Histograms};
pub use settings::{
    Endpoint, Metrics, Prometheus, PromptClasses, Protocol, Sampler, Semconv, Settings, Temporality, Traces,
};
