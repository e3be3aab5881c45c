"""Pods of inference servers in all common forms, and the differences between two of them."""

from helm_chart import included

LABEL = {"tokometer/inject": "true"}
QUANTITIES = {"cpu": "4", "memory": "16Gi"}
RESTRICTED = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}


def container(name="vllm", **more):
    return {"name": name, "image": "engine:1", "args": ["serve", "model"], "ports": [{"containerPort": 8000}], **more}


def pod(*containers, labels=LABEL, namespace="llm", **spec):
    containers = list(containers) or [container()]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace, "labels": labels}, "spec": {"containers": containers, **spec}}


def without(container, *keys):
    return {key: value for key, value in container.items() if key not in keys}


def without_ports(**spec):
    """A pod that declares no port."""
    return pod(without(container(), "ports"), **spec)


def with_api_defaults():
    """A pod as it is passed to policies: with the API server's defaults, and after its admission of service accounts."""
    token = {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    server = container(
        ports=[{"containerPort": 8000, "protocol": "TCP", "name": "http"}], resources={}, volumeMounts=[token], imagePullPolicy="IfNotPresent",
        terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File",
    )
    volume = {"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}], "defaultMode": 420}}
    return pod(
        server, volumes=[volume], securityContext={}, terminationGracePeriodSeconds=30, dnsPolicy="ClusterFirst", restartPolicy="Always", schedulerName="default-scheduler",
        serviceAccountName="default", enableServiceLinks=True, preemptionPolicy="PreemptLowerPriority", priority=0,
        tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
    )


def pods_with_sidecar():
    """Pods that get a sidecar."""
    guaranteed = {"resources": {"limits": QUANTITIES, "requests": QUANTITIES}}
    return {
        "args alone": pod(),
        "with the API server's defaults": with_api_defaults(),
        "command alone": pod(without(container(command=["vllm", "serve", "model"]), "args")),
        "command and args": pod(container(command=["python3", "-m", "vllm.entrypoints.openai.api_server"])),
        "no port declared": pod(without(container(), "ports")),
        "an init container": pod(initContainers=[{"name": "download", "image": "fetch:1"}]),
        "another native sidecar": pod(initContainers=[{"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"}]),
        "two containers": pod({"name": "logs", "image": "logs:1"}, container()),
        "guaranteed": pod(container(**guaranteed)),
        "guaranteed by limits": pod(container(resources={"limits": QUANTITIES})),
        "guaranteed except for an init container": pod(container(**guaranteed), initContainers=[{"name": "download", "image": "fetch:1"}]),
        "burstable": pod(container(resources={"limits": QUANTITIES, "requests": {"cpu": "2", "memory": "16Gi"}})),
        "restricted": pod(container(securityContext=RESTRICTED), securityContext={"runAsNonRoot": True}),
        "a hook after the start": pod(container(lifecycle={"postStart": {"exec": {"command": ["true"]}}})),
        "a hook before the end": pod(container(lifecycle={"preStop": {"sleep": {"seconds": 15}}})),
        "a short grace period": pod(terminationGracePeriodSeconds=30),
        "a long grace period": pod(terminationGracePeriodSeconds=900),
        "volumes and annotations": pod(
            container(volumeMounts=[{"name": "cache", "mountPath": "/cache"}], env=[{"name": "HF_HOME", "value": "/cache"}]), volumes=[{"name": "cache", "emptyDir": {}}]
        ),
        "probes of another type": pod(container(livenessProbe={"tcpSocket": {"port": 8000}, "timeoutSeconds": 2}, startupProbe={"grpc": {"port": 8000}})),
        "a probe": pod(container(livenessProbe={"httpGet": {"path": "/health", "port": 8000}})),
    }


def pods_without_sidecar():
    """Pods that get no sidecar, and a part of the reason on the pod and in the warning; None for no reason."""
    already = included({})["containers"]
    return {
        "no label": (pod(labels={"app": "vllm"}), None),
        "another value": (pod(labels={"tokometer/inject": "false"}), None),
        "a system namespace": (pod(namespace="kube-system"), None),
        "injected already": (pod(initContainers=already), None),
        "a container of that name": (pod(container(), container("tokometer")), None),
        "the admin port": (pod(container(ports=[{"containerPort": 8000}, {"containerPort": 9464}])), "declares the port 9464"),
        "windows": (pod(os={"name": "windows"}), "Windows"),
        "a script": (pod(container(command=["/start.sh"])), "without a shell"),
        "the node's network": (pod(hostNetwork=True), "host network"),
        "several containers, and none has the port": (pod(without(container("a"), "ports"), without(container("b"), "ports")), "declares the port 8000"),
        "a shell": (pod(container(command=["/bin/sh", "-c"], args=["start-engine model"])), "without a shell"),
        "a shell with its command": (pod(without(container(command=["bash", "-lc", "exec start-engine model"]), "args")), "without a shell"),
        "a script for the image's shell": (pod(container(args=["-c", "start-engine model"])), "without a shell"),
        "neither command nor args": (pod(without(container(), "args")), "set command and args"),
        "another port": (pod(container(args=["serve", "model", "--port", "8080"])), "the value of the engine flag --port is not 8000"),
        "a second rank": (pod(container(ports=[{"containerPort": 8000}, {"containerPort": 8001}])), "data-parallel rank"),
        "a Unix socket": (pod(container(args=["serve", "model", "--uds=/run/vllm.sock"])), "Unix socket"),
        "a probe of another port": (pod(container(readinessProbe={"httpGet": {"path": "/health", "port": 8081}})), "a probe goes to a port"),
    }


def without_empty_values(value):
    """Without the empty values that the API's Go types write."""
    if isinstance(value, dict):
        return {key: without_empty_values(inner) for key, inner in value.items() if inner not in ({}, None) or key in ("emptyDir",)}
    return [without_empty_values(inner) for inner in value] if isinstance(value, list) else value


def difference(injected, admitted, path=""):
    """The differences between inject's and the policy's result."""
    if isinstance(injected, dict) and isinstance(admitted, dict):
        keys = sorted(injected.keys() | admitted.keys())
        return "".join(difference(injected.get(key), admitted.get(key), f"{path}/{key}") for key in keys)
    if isinstance(injected, list) and isinstance(admitted, list) and len(injected) == len(admitted):
        pairs = enumerate(zip(injected, admitted, strict=True))
        return "".join(difference(left, right, f"{path}/{index}") for index, (left, right) in pairs)
    return "" if injected == admitted else f"  {path}: inject {injected}, policy {admitted}\n"
