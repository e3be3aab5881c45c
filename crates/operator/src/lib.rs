//! What an operator installs: Prometheus rules, Grafana dashboards, and the sidecar in Kubernetes manifests.

mod alerting;
pub mod dashboards;
mod fleet;
pub mod inject;
mod placeholder;
pub mod profile;
pub mod promql;
pub mod rules;
