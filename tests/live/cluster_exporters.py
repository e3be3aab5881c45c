"""Stand-ins for the exporters of a cluster (kube-state-metrics, cAdvisor, NVIDIA's DCGM exporter): one page about a fleet."""

import http.server
import threading
import time

from process import metrics, total

LIMIT_BYTES = 128 << 20
# A CPU quota of half a core. A scheduling period is 100 ms long, and is throttled when its quota is used up.
PERIODS_PER_SECOND, QUOTA = 10, 0.5


class ClusterExporters:
    """Serves `/metrics` about these pods from `with` on; `rollouts` counts changes of their Deployment."""

    def __init__(self, pods):
        self.pods, self.rollouts, self.started = pods, 1, time.time()
        page = self._page

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = page().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def roll_out(self):
        self.rollouts += 1

    def _page(self):
        lines, periods = [], int((time.time() - self.started) * PERIODS_PER_SECOND)
        for pod in self.pods.values():
            labels = f'namespace="{pod.namespace}",pod="{pod.name}"'
            sidecar_labels = f'{labels},container="tokometer"'
            lines += [
                f"kube_pod_init_container_info{{{sidecar_labels}}} 1",
                f"kube_pod_init_container_status_restarts_total{{{sidecar_labels}}} 0",
                f'kube_pod_container_resource_limits{{{sidecar_labels},resource="memory"}} {LIMIT_BYTES}',
                f"container_cpu_cfs_periods_total{{{sidecar_labels}}} {periods}",
                f"container_cpu_cfs_throttled_periods_total{{{sidecar_labels}}} {int(periods * self._throttled(pod))}",
                f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {self._gpu_percent(pod):.0f}",
            ]
        for namespace in sorted({pod.namespace for pod in self.pods.values()}):
            labels = f'namespace="{namespace}",deployment="vllm"'
            lines.append(f"kube_deployment_status_observed_generation{{{labels}}} {self.rollouts}")
        return "\n".join(lines) + "\n"

    def _throttled(self, pod):
        """The share of the quota that the process has used so far."""
        return min(1.0, pod.relay.cpu_seconds() / max(1.0, time.time() - self.started) / QUOTA)

    def _gpu_percent(self, pod):
        """A GPU is busy while its engine generates."""
        try:
            return min(100, 35 * total(metrics(f"http://127.0.0.1:{pod.server.port}/metrics"), "vllm:num_requests_running"))
        except (OSError, AssertionError, ValueError):
            return 0
