//! The containers that are added to a pod.

use crate::inject::value::Value;
use crate::inject::value::map;

/// Name of the sidecar container.
pub const NAME: &str = "tokometer";

/// Name of the init container that writes the rules of the mode `redirect`.
pub(super) const REDIRECT: &str = "tokometer-redirect";

/// Default port of /metrics, health and drain.
pub const ADMIN_PORT: u16 = 9464;

/// The sidecar's own listen port, in the modes `redirect` and `explicit`.
pub(super) const OWN_PORT: u16 = 15_080;

/// Name and mount path of the volume with the server's Unix socket.
pub(super) const VOLUME: (&str, &str) = ("tokometer-socket", "/run/tokometer");

/// The server's Unix socket.
pub(super) const SOCKET: &str = "/run/tokometer/engine.sock";

/// User of the image (`Dockerfile`).
const USER: i64 = 65_532;

/// Threads of the data path. Without a CPU limit the default is one per core of the node, which may be hundreds.
const THREADS: u8 = 2;

/// The parts that differ between sidecars.
#[derive(Clone, Debug)]
pub(super) struct Sidecar<'a> {
    pub(super) image: &'a str,
    pub(super) listen: String,
    pub(super) upstream: String,
    /// Value of the setting `observe.engine`.
    pub(super) engine: Option<&'static str>,
    pub(super) admin_port: u16,
    /// Whether it declares [`OWN_PORT`], because it does not use the server's port.
    pub(super) own_port: bool,
    /// Maximum seconds that open streams get in a drain.
    pub(super) drain_secs: u64,
    /// Whether the pod is Guaranteed and must stay so.
    pub(super) guaranteed: bool,
    /// The server's user, if a socket or port must be shared with it.
    pub(super) user: Option<i64>,
    /// Whether it shares its port with the server (SO_REUSEPORT).
    pub(super) port_sharing: bool,
    /// Whether it mounts the volume with the server's socket.
    pub(super) socket: bool,
    pub(super) variables: &'a [(String, String)],
}

impl Sidecar<'_> {
    /// The container: a native sidecar (an init container with `restartPolicy: Always`; Kubernetes 1.29).
    pub(super) fn container(&self) -> Value {
        let mut entries = vec![
            ("name", NAME.into()),
            ("image", self.image.into()),
            ("restartPolicy", "Always".into()),
            ("args", self.arguments().into()),
            ("ports", Value::List(self.ports())),
            ("env", Value::List(self.environment())),
            // Probes only the listener and the event loop. A probe that depends on the server would never succeed,
            // because the server starts after the sidecar.
            ("startupProbe", self.probe("/startz", [("periodSeconds", 1), ("failureThreshold", 60)])),
            ("livenessProbe", self.probe("/livez", [("periodSeconds", 10), ("failureThreshold", 6)])),
            ("lifecycle", map([("preStop", map([("exec", map([("command", self.drain().into())]))]))])),
            ("resources", self.resources()),
            ("securityContext", self.security()),
            ("terminationMessagePolicy", "FallbackToLogsOnError".into()),
        ];
        if self.socket {
            entries.push(("volumeMounts", Value::List(vec![mount()])));
        }
        Value::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The preStop command. It runs at the same time as the server's own hook, which waits for the drain.
    fn drain(&self) -> Vec<String> {
        let mut command = vec!["/tokometer".to_owned(), "drain".to_owned()];
        if self.admin_port != ADMIN_PORT {
            command.push(format!("--admin=http://127.0.0.1:{}", self.admin_port));
        }
        command
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "run".to_owned(),
            format!("--listen={}", self.listen),
            format!("--upstream={}", self.upstream),
            // Without a host it binds both families: probes come to the pod's address of either family.
            format!("--admin=:{}", self.admin_port),
            format!("--set=process.threads={THREADS}"),
            format!("--set=process.grace_period_secs={}", self.drain_secs),
        ];
        arguments.extend(self.port_sharing.then(|| "--set=relay.port_sharing=true".to_owned()));
        arguments.extend(self.engine.map(|engine| format!("--set=observe.engine={engine}")));
        arguments
    }

    fn ports(&self) -> Vec<Value> {
        let port = |name: &str, number: u16| map([("name", name.into()), ("containerPort", number.into())]);
        let own = self.own_port.then(|| port("llm-traffic", OWN_PORT));
        [port("llm-metrics", self.admin_port)].into_iter().chain(own).collect()
    }

    /// The downward API, for the `k8s.*` attributes and the listen addresses.
    fn environment(&self) -> Vec<Value> {
        let field = |(name, path): (&str, &str)| {
            let from = map([("fieldRef", map([("fieldPath", path.into())]))]);
            map([("name", name.into()), ("valueFrom", from)])
        };
        let fields = [
            ("POD_NAME", "metadata.name"),
            ("POD_NAMESPACE", "metadata.namespace"),
            ("POD_UID", "metadata.uid"),
            ("POD_IPS", "status.podIPs"),
            ("NODE_NAME", "spec.nodeName"),
        ];
        let own =
            |(name, value): &(String, String)| map([("name", name.as_str().into()), ("value", value.as_str().into())]);
        fields.into_iter().map(field).chain(self.variables.iter().map(own)).collect()
    }

    /// Probes only by port: the pod security profile baseline does not allow a host.
    fn probe(&self, path: &str, numbers: [(&str, i64); 2]) -> Value {
        let get = map([("path", path.into()), ("port", self.admin_port.into())]);
        let numbers = numbers.into_iter().map(|(name, number)| (name.to_owned(), number.into()));
        Value::Map(
            [("httpGet".to_owned(), get)]
                .into_iter()
                .chain(numbers)
                .chain([("timeoutSeconds".to_owned(), 3i64.into())])
                .collect(),
        )
    }

    /// No CPU limit by default, because throttling shows as gaps between tokens. A Guaranteed pod requires one.
    fn resources(&self) -> Value {
        let amounts = |cpu: &str, memory: &str| map([("cpu", cpu.into()), ("memory", memory.into())]);
        if self.guaranteed {
            return map([("requests", amounts("500m", "256Mi")), ("limits", amounts("500m", "256Mi"))]);
        }
        map([("requests", amounts("100m", "32Mi")), ("limits", map([("memory", "256Mi".into())]))])
    }

    /// The requirements of the pod security profile `restricted`, except for the user if the server's must be shared.
    fn security(&self) -> Value {
        let user = self.user.unwrap_or(USER);
        map([
            ("allowPrivilegeEscalation", false.into()),
            ("readOnlyRootFilesystem", true.into()),
            ("runAsNonRoot", (user != 0).into()),
            ("runAsUser", user.into()),
            ("capabilities", map([("drop", vec!["ALL"].into())])),
            ("seccompProfile", map([("type", "RuntimeDefault".into())])),
        ])
    }
}

/// The mount of the socket volume.
pub(super) fn mount() -> Value {
    map([("name", VOLUME.0.into()), ("mountPath", VOLUME.1.into())])
}

/// The socket volume.
pub(super) fn volume() -> Value {
    map([("name", VOLUME.0.into()), ("emptyDir", map([]))])
}

/// The init container that redirects connections for the server's port to the sidecar. Connections opened inside the
/// pod are not redirected: such packets do not pass `prerouting` again. It needs NET_ADMIN and root, because an exec by
/// a non-root user loses capabilities.
pub(super) fn redirect(image: &str, port: u16, guaranteed: bool) -> Value {
    let rules = format!(
        "add table inet tokometer; flush table inet tokometer; \
         add chain inet tokometer prerouting {{ type nat hook prerouting priority dstnat; policy accept; }}; \
         add rule inet tokometer prerouting fib daddr type local tcp dport {port} redirect to :{OWN_PORT}"
    );
    let amounts = || map([("cpu", "10m".into()), ("memory", "16Mi".into())]);
    let resources = match guaranteed {
        true => map([("requests", amounts()), ("limits", amounts())]),
        false => map([("requests", amounts())]),
    };
    map([
        ("name", REDIRECT.into()),
        ("image", image.into()),
        ("command", vec!["nft".to_owned(), rules].into()),
        ("resources", resources),
        (
            "securityContext",
            map([
                ("allowPrivilegeEscalation", false.into()),
                ("readOnlyRootFilesystem", true.into()),
                ("runAsNonRoot", false.into()),
                ("runAsUser", 0i64.into()),
                ("capabilities", map([("drop", vec!["ALL"].into()), ("add", vec!["NET_ADMIN"].into())])),
                ("seccompProfile", map([("type", "RuntimeDefault".into())])),
            ]),
        ),
        ("terminationMessagePolicy", "FallbackToLogsOnError".into()),
    ])
}
