//! Finds an engine's metrics page without consuming data that another reader needs.
//!
//! trtllm-serve responds to GET /metrics with the statistics of iterations since the last such request, so a request
//! takes them from other readers. Its Prometheus page is /prometheus/metrics. Therefore an OPTIONS request comes first:
//! a FastAPI route (as in trtllm-serve) responds with 405, while a mounted Prometheus app (vLLM, SGLang, LMDeploy)
//! responds with 200, a redirect or its page, and servers other than uvicorn have no such route.

use http::Method;
use http::StatusCode;
use http::header;

use crate::scrape::Failure;
use crate::scrape::Target;
use crate::scrape::request::Dial;
use crate::scrape::request::ask;

/// The usual path.
const USUAL: &str = "/metrics";
/// TensorRT-LLM's Prometheus page (`return_perf_metrics`).
const TENSORRT_LLM: &str = "/prometheus/metrics";

/// Where to read the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This path.
    At(String),
    /// Nowhere: llama.cpp restarts the averages `llamacpp:prompt_tokens_seconds` and
    /// `llamacpp:predicted_tokens_seconds` at each read of its page.
    Draining,
}

/// Finds the page; sends a request only if the settings do not determine the path.
pub(crate) async fn find(target: &Target, dial: &dyn Dial) -> Result<Place, Failure> {
    if let Some(path) = &target.path {
        return Ok(Place::At(path.clone()));
    }
    let llama_cpp = || if target.draining { Place::At(USUAL.to_owned()) } else { Place::Draining };
    match target.engine {
        Some("llama_cpp") => return Ok(llama_cpp()),
        Some("tensorrt_llm") => return Ok(Place::At(TENSORRT_LLM.to_owned())),
        Some(_) => return Ok(Place::At(USUAL.to_owned())),
        None => {}
    }
    let answer = ask(dial, Method::OPTIONS, USUAL).await?;
    let server = answer.header(header::SERVER).unwrap_or_default();
    if server == "llama.cpp" {
        return Ok(llama_cpp());
    }
    let routed = answer.status == StatusCode::METHOD_NOT_ALLOWED && server == "uvicorn";
    Ok(Place::At(if routed { TENSORRT_LLM } else { USUAL }.to_owned()))
}

/// The target path of a redirect that only appends a slash, as Starlette sends for a mounted app (LMDeploy).
pub(crate) fn moved(path: &str, status: StatusCode, location: Option<&str>) -> Option<String> {
    let to = location.filter(|_| status.is_redirection())?;
    let slashed = format!("{path}/");
    (!path.ends_with('/') && to.ends_with(&slashed)).then_some(slashed)
}
