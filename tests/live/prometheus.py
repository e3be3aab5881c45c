"""A real Prometheus with the test's configuration and rules, and its query results."""

import json
import urllib.parse
from pathlib import Path

from process import Process, Skip, free_port, get


class Prometheus(Process):
    """Scrapes the configured targets into a directory that is kept after its exit. Exemplars are stored."""

    def __init__(self, directory, config):
        self.directory, self.port = Path(directory), free_port()
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "prometheus.yml"
        file.write_text(json.dumps(config, indent=1))
        argv = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={self.directory}/data", "--log.level=warn"]
        argv += [f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage"]
        try:
            super().__init__("prometheus", argv)
        except FileNotFoundError:
            raise Skip("no prometheus") from None
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            self.ready(f"{self.url}/-/ready")
        except AssertionError:
            if "field scrape_native_histograms not found" in self.output():
                raise Skip("this build of prometheus cannot scrape native histograms (with Go, tests/components/fetch.sh builds one)") from None
            raise

    def get_api(self, path, **parameters):
        """The `data` of an API response; the API's errors are raised as ValueError."""
        parameters = {name: value for name, value in parameters.items() if value is not None}
        _, body = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}", timeout=30.0)
        response = json.loads(body or '{"error": "no response"}')
        if response.get("status") != "success":
            raise ValueError(response.get("error", body))
        return response["data"]

    def query(self, expr, time=None):
        """Series of an instant query: (labels, value)."""
        data = self.get_api("query", query=expr, time=time)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(series["metric"], float(series["value"][1]) if "value" in series else series["histogram"][1]) for series in data["result"]]

    def query_range(self, expr, start, end, step):
        """Series of a range query: (labels, values)."""
        data = self.get_api("query_range", query=expr, start=start, end=end, step=step)
        values = lambda series: [float(value) for _, value in series.get("values", [])]  # noqa: E731
        return [(series["metric"], values(series) or series.get("histograms")) for series in data["result"]]

    def rules(self):
        """Every rule, with its health and its last error."""
        return [rule | {"group": group["name"]} for group in self.get_api("rules")["groups"] for rule in group["rules"]]

