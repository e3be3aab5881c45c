//! What an operator installs: Prometheus rules, Grafana dashboards, and the sidecar in Kubernetes manifests.

pub mod dashboards;
pub mod inject;
mod placeholder;
pub mod rules;
