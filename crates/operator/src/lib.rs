//! What an operator installs: Prometheus rules, Grafana dashboards, and the sidecar in Kubernetes manifests.

pub mod dashboards;
pub mod fleet;
pub mod inject;
mod placeholder;
pub mod promql;
pub mod rules;
