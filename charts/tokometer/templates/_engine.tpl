{{/* What each engine calls its flags, and how each mode brings traffic to tokometer. */}}

{{/* Settings of one target: those of `sidecar`, and over them, two levels deep, those of the target: (dict "root" . "target" MAP). */}}
{{- define "tokometer.settings" -}}
{{- $settings := deepCopy .root.Values.sidecar -}}
{{- range $key, $value := (default dict .target.sidecar) -}}
{{- $old := index $settings $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
{{- range $inner, $innerValue := $value -}}{{- $_ := set $old $inner $innerValue -}}{{- end -}}
{{- else -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- end -}}
{{- /* A target's tag replaces the digest of all targets. `merge` would replace empty values. */}}
{{- $image := deepCopy .root.Values.image -}}
{{- if and .target.image .target.image.tag -}}{{- $_ := set $image "digest" "" -}}{{- end -}}
{{- range $key, $value := (default dict .target.image) -}}{{- $_ := set $image $key $value -}}{{- end -}}
{{- $_ := set $settings "image" $image -}}
{{- if eq $settings.mode "auto" -}}{{- $_ := set $settings "mode" "address-split" -}}{{- end -}}
{{- if eq $settings.mode "tap" -}}
{{- /* No part in the traffic: nothing to drain, and the engine stays as it is. */}}
{{- $_ := set $settings "drain" (dict "enabled" false) -}}
{{- $_ := set $settings "tlsSecret" "" -}}
{{- end -}}
{{- $collector := and .root.Values.collector .root.Values.collector.enabled -}}
{{- if and $collector (not $settings.otlp.endpoint) -}}
{{- $service := printf "http://%s-collector.%s:4318" (include "tokometer.fullname" .root) .root.Release.Namespace -}}
{{- $_ := set $settings "otlp" (dict "endpoint" $service) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Where the engine's Unix socket is, in `uds` mode. */}}
{{- define "tokometer.socket" -}}/run/tokometer/engine.sock{{- end -}}

{{/* How engines are set to listen on loopback only (`host`), on another port (`port`), on a Unix socket (`socket`): by `args`, or
     by `env`. Where both are there, the variable is used unless `flag` is among the arguments already, which would win. %s is
     replaced by the port, or the path. `once`: the flag may not be given twice, so a container that has it is left alone.
     Sources: the engines' own parsers (vLLM 0.33 entrypoints/common/cli_args.py, SGLang server_args.py, llama.cpp common/arg.cpp,
     TGI launcher/src/main.rs, Ollama envconfig/config.go, TensorRT-LLM commands/serve.py, LMDeploy cli/serve.py, Triton
     command_line_parser.cc). */}}
{{- define "tokometer.engine" -}}
vllm:             {host: {args: ["--host=127.0.0.1"]}, port: {args: ["--port=%s"]}, socket: {args: ["--uds=%s"]}}
sglang:           {host: {args: ["--host=127.0.0.1"]}, port: {args: ["--port=%s"]}}
llama_cpp:
  host: {args: ["--host", "127.0.0.1"], env: {name: LLAMA_ARG_HOST, value: "127.0.0.1"}, flag: "--host"}
  port: {args: ["--port", "%s"], env: {name: LLAMA_ARG_PORT, value: "%s"}, flag: "--port"}
  socket: {args: ["--host", "%s"], env: {name: LLAMA_ARG_HOST, value: "%s"}, flag: "--host"}
llama_cpp_python: {host: {args: ["--host=127.0.0.1"]}, port: {args: ["--port=%s"]}}
tgi:              {host: {args: ["--hostname=127.0.0.1"], once: "--hostname", variable: HOSTNAME}, port: {args: ["--port=%s"], once: "--port"}}
ollama:
  host: {env: {name: OLLAMA_HOST, value: "127.0.0.1:%s"}}
  port: {env: {name: OLLAMA_HOST, value: "0.0.0.0:%s"}}
tensorrt_llm:     {host: {args: ["--host=127.0.0.1"]}, port: {args: ["--port=%s"]}}
lmdeploy:         {host: {args: ["--server-name=127.0.0.1"]}, port: {args: ["--server-port=%s"]}}
transformers:     {host: {args: ["--host=127.0.0.1"]}, port: {args: ["--port=%s"]}}
triton:           {host: {args: ["--http-address=127.0.0.1"]}, port: {args: ["--http-port=%s"]}}
dynamo:           {}
auto:             {}
{{- end -}}

{{/* Which of these a mode needs: the word, or nothing. Input: settings. */}}
{{- define "tokometer.needs" -}}
{{- get (dict "address-split" "host" "port-swap" "port" "uds" "socket") .mode -}}
{{- end -}}

{{/* Port on which tokometer listens. Input: settings. */}}
{{- define "tokometer.listenPort" -}}
{{- int (ternary .listenPort .port (has .mode (list "redirect" "explicit"))) -}}
{{- end -}}

{{/* Port on which the engine listens. Input: settings. */}}
{{- define "tokometer.serverPort" -}}
{{- if ne .mode "port-swap" -}}{{- int .port -}}
{{- else if .serverPort -}}{{- int .serverPort -}}
{{- else -}}{{- add (int .port) 1 -}}{{- end -}}
{{- end -}}

{{/* What one mode means for one engine: `listen` and `upstream` of tokometer; `args`, `env`, `flag` and `once` of the engine, as
     above; `more`: flags that are given to it in any case. Input: settings. */}}
{{- define "tokometer.interception" -}}
{{- $setting := dict -}}
{{- with include "tokometer.needs" . -}}
{{- $setting = default dict (index (index (include "tokometer.engine" $ | fromYaml) $.engine) .) -}}
{{- end -}}
{{- $value := ternary (include "tokometer.socket" .) (include "tokometer.serverPort" .) (eq .mode "uds") -}}
{{- $upstream := printf "127.0.0.1:%s" (include "tokometer.serverPort" .) -}}
{{- if eq .mode "uds" -}}{{- $upstream = printf "unix:%s" (include "tokometer.socket" .) -}}{{- end -}}
{{- if eq .mode "redirect" -}}{{- $upstream = "original" -}}{{- end -}}
{{- $args := list -}}
{{- range (default list $setting.args) -}}{{- $args = append $args (replace "%s" $value .) -}}{{- end -}}
{{- $own := ternary "[$(POD_IPS),127.0.0.1]" "[$(POD_IPS)]" (has .mode (list "port-swap" "uds")) -}}
{{- $made := dict "listen" (printf "%s:%s" (default $own .listenHost) (include "tokometer.listenPort" .)) "upstream" $upstream "args" $args "flag" (default "" $setting.flag) "once" (default "" $setting.once) "more" .engineArgs -}}
{{- with $setting.env -}}{{- $_ := set $made "env" (dict "name" .name "value" (replace "%s" $value .value)) -}}{{- end -}}
{{- toYaml $made -}}
{{- end -}}
