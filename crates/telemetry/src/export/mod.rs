//! The metric table and both exporters: records in, Prometheus pages and OTLP batches out.

mod attributes;
mod classes;
mod distribution;
mod docs;
mod engine;
mod exporters;
mod failure;
mod handles;
mod label_sets;
mod labels;
mod ledger;
mod live;
mod objectives;
mod observed;
mod otlp;
mod page;
mod process;
mod recorder;
mod series;
mod settings;
mod telemetry;
mod trace;

/// The single table of metrics.
pub mod table;

pub use docs::metrics_markdown;
pub use exporters::{Error, Exporters};
pub use ledger::{BudgetStats, CostStats, LedgerStats, TenantStats, UnpricedStats};
pub use objectives::{JudgedStats, ObjectiveStats, SloStats};
pub use otlp::{Passage, usable_endpoint};
pub use page::Page;
pub use process::{
    AccessLogStats, BudgetFigures, EngineSpans, PairStats, PhaseStats, ProcessFigures, ProcessStats, Snapshot,
};
pub use settings::{Endpoint, Metrics, PromptClasses, Protocol, Sampler, Semconv, Settings, Temporality, Traces};
