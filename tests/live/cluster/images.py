"""Container images, written as archives: a Dockerfile FROM scratch defines the contents, and neither a registry nor a builder is needed."""

import hashlib
import io
import json
import platform
import re
import shlex
import subprocess
import tarfile
from pathlib import Path

from helm_chart import CHART, ROOT
from process import MODEL, Skip

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
OCI = "application/vnd.oci.image"
# The chart's default name, without a registry.
TOKOMETER = "localhost/tokometer:" + re.search(r"^appVersion: (\S+)", (CHART / "Chart.yaml").read_text(), re.M)[1]
VLLM, LLAMA = "localhost/vllm:test", "localhost/llama.cpp:test"
# A user and a group that only containers have.
USER = "65532:65532"


def read_dockerfile(text, context):
    """The files and the configuration of the image that a Dockerfile describes. Supports only the instructions of a single-program image."""
    files, config, arguments = {}, {}, {}
    lines = (line.strip() for line in text.splitlines())
    for line in filter(lambda line: line and not line.startswith("#"), lines):
        instruction, _, rest = line.partition(" ")
        rest = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], rest)
        if instruction == "FROM":
            assert rest == "scratch", f"unsupported base image: {line}"
        elif instruction == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = ARCHITECTURE if name == "TARGETARCH" else value
        elif instruction == "COPY":
            source, target = shlex.split(rest)
            files[target] = Path(context) / source
        elif instruction == "ENV":
            config.setdefault("Env", []).append(rest)
        elif instruction == "USER":
            config["User"] = rest
        elif instruction == "EXPOSE":
            config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
        elif instruction in ("ENTRYPOINT", "CMD"):
            config[instruction.capitalize()] = json.loads(rest)
        else:
            raise AssertionError(f"unsupported instruction: {line}")
    return files, config


def write_archive(target, name, files, config):
    """Writes an OCI archive of one layer with these files (image path -> local path), all executable by everyone."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for image_path, source in sorted(files.items()):
            entry = tarfile.TarInfo(image_path.lstrip("/"))
            entry.mode, entry.size = 0o755, source.stat().st_size
            with source.open("rb") as content:
                tar.addfile(entry, content)
    blobs = {}

    def blob(kind, data):
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[f"blobs/{digest.replace(':', '/')}"] = data
        return {"mediaType": f"{OCI}.{kind}", "digest": digest, "size": len(data)}

    layer_blob = blob("layer.v1.tar", layer.getvalue())
    image_config = {"architecture": ARCHITECTURE, "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]}}
    manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": blob("config.v1+json", json.dumps(image_config).encode()), "layers": [layer_blob]}
    entry = blob("manifest.v1+json", json.dumps(manifest).encode()) | {"annotations": {"io.containerd.image.name": name}}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(target, "w") as tar:
        for path, data in blobs.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def tokometer(context):
    """The project's own image, from its Dockerfile for binaries."""
    return read_dockerfile((ROOT / "image" / "Dockerfile.binary").read_text(), context)


def vllm(binary, programs):
    """The simulator with vLLM's command line, and a shell that can start it."""
    bash = Path("/bin/bash")
    listed = subprocess.run(["ldd", str(bash)], capture_output=True, text=True, check=True).stdout
    shell = {path: Path(path) for path in [str(bash), *re.findall(r"(/\S+) \(0x", listed)]}
    # The names under which manifests start the engine.
    names = {name: programs / "vllm" for name in ("/vllm", "/usr/bin/vllm", "/usr/bin/python3", "/usr/bin/ray")}
    return {"/tokometer": binary, "/bin/sh": bash, **names, **shell}, {"Entrypoint": ["/vllm"], "User": USER}


def pause(programs):
    return {"/pause": programs / "pause"}, {"Entrypoint": ["/pause"], "User": USER}


def llama_server(wrapper):
    """A real llama-server with the loader and libraries of this machine, and the tiny model."""
    if not wrapper.exists():
        raise Skip("no llama-server")
    text = wrapper.read_text(errors="replace")
    command = re.search(r"exec '(\S+)' --library-path '(\S+)' '(\S+)'", text)
    backend = re.search(r"GGML_BACKEND_PATH='(\S+)'", text)
    if not (command and backend):
        raise Skip("the system's llama-server cannot be put into an image")
    loader, libraries, program = command.groups()
    files = {"/llama/server": Path(program), "/llama/backend.so": Path(backend[1]), "/models/tiny-chat.gguf": MODEL}
    for binary in (program, backend[1]):
        listed = subprocess.run([loader, "--library-path", libraries, "--list", binary], capture_output=True, text=True, check=True).stdout
        files |= {f"/llama/{name}": Path(found) for name, found in re.findall(r"^\s*([^/\s]+) => (/\S+)", listed, re.M)}
    files["/llama/loader"] = Path(loader)
    config = {"Entrypoint": ["/llama/loader", "--library-path", "/llama", "/llama/server"], "Env": ["GGML_BACKEND_PATH=/llama/backend.so"], "User": USER}
    return files, config
