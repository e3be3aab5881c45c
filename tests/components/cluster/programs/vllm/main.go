// The simulator with the command line of vLLM: `vllm serve MODEL [--host HOST] [--port PORT] [--uds PATH]
// [--ssl-certfile FILE --ssl-keyfile FILE]`, and any flag of `tokometer sim`. Other flags of vLLM are ignored. Under the names `python3`
// and `ray` it ignores the module and the subcommand, so that commands of real manifests start it.
//
// Environment variables set what vLLM has no flag for: SIM_PORTS (further ports, as of data-parallel ranks), SIM_ANY_HOST (ignores
// --host), SIM_SHARED_PORT (sets SO_REUSEPORT, as vLLM always does) and SIM_LOAD (seconds before it listens). `vllm proxy --port PORT --vllm-port PORT` forwards connections to the second port on localhost,
// as llm-d's routing proxy does.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const simulator = "/tokometer"

// Flags of the simulator, and whether each has a value.
var simulatorFlags = map[string]bool{
	"--rate": true, "--ttft-ms": true, "--tokens": true, "--engine": true, "--cached-share": true, "--max-concurrency": true,
	"--tokens-per-chunk": true, "--otlp-traces-endpoint": true, "--faults": true, "--request-metrics": false,
}

// Server holds the parsed command line: the values of vLLM's flags, and the arguments for the simulator.
type Server struct {
	values    map[string]string
	simulator []string
}

func parse(arguments []string) (*Server, error) {
	server := &Server{values: map[string]string{"--model": "sim", "--port": "8000"}}
	for len(arguments) > 0 {
		word := arguments[0]
		arguments = arguments[1:]
		if word == "-m" && len(arguments) > 0 {
			arguments = arguments[1:]
			continue
		}
		name, value, joined := strings.Cut(word, "=")
		if !strings.HasPrefix(name, "--") {
			if word != "serve" && word != "start" && server.values["--model"] == "sim" {
				server.values["--model"] = word
			}
			continue
		}
		hasValue, known := simulatorFlags[name]
		separate := !joined && len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") && (!known || hasValue)
		if separate {
			value, arguments = arguments[0], arguments[1:]
		}
		switch {
		case known && hasValue:
			server.simulator = append(server.simulator, name, value)
		case known:
			server.simulator = append(server.simulator, name)
		default:
			server.values[name] = value
		}
		required := []string{"--host", "--port", "--uds", "--model", "--ssl-certfile", "--ssl-keyfile"}
		if value == "" && (hasValue || slices.Contains(required, name)) {
			return nil, fmt.Errorf("%s needs a value", name)
		}
	}
	if os.Getenv("SIM_ANY_HOST") != "" {
		server.values["--host"] = ""
	}
	return server, nil
}

func (s *Server) command(listen string) []string {
	return append([]string{simulator, "sim", "--listen", listen, "--model", s.values["--model"]}, s.simulator...)
}

func (s *Server) run() error {
	seconds, _ := strconv.ParseFloat(os.Getenv("SIM_LOAD"), 64)
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	if path := s.values["--uds"]; path != "" {
		return replace(s.command("unix:" + path))
	}
	ports := append([]string{s.values["--port"]}, strings.FieldsFunc(os.Getenv("SIM_PORTS"), func(r rune) bool { return r == ',' })...)
	certificate, isShared := s.values["--ssl-certfile"], os.Getenv("SIM_SHARED_PORT") != ""
	if len(ports) == 1 && certificate == "" && !isShared {
		return replace(s.command(net.JoinHostPort(s.values["--host"], ports[0])))
	}
	ended := make(chan error)
	var children []*exec.Cmd
	for n, port := range ports {
		listen := net.JoinHostPort(s.values["--host"], port)
		if certificate != "" || isShared {
			inner := net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+n))
			listener, err := shared(listen)
			if err == nil && certificate != "" {
				listener, err = terminate(listener, certificate, s.values["--ssl-keyfile"])
			}
			if err != nil {
				return err
			}
			go forward(listener, inner)
			listen = inner
		}
		words := s.command(listen)
		child := exec.Command(words[0], words[1:]...)
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
		children = append(children, child)
		go func() { ended <- child.Wait() }()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case received := <-signals:
		for _, child := range children {
			_ = child.Process.Signal(received)
		}
		for range children {
			<-ended
		}
		return nil
	case err := <-ended:
		return fmt.Errorf("a port ended: %v", err)
	}
}

// Listens with SO_REUSEPORT, as vLLM does (vllm/entrypoints/openai/api_server.py, create_server_socket).
func shared(listen string) (net.Listener, error) {
	const reusePort = 15
	set := func(_, _ string, connection syscall.RawConn) (err error) {
		failed := connection.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, reusePort, 1) })
		return errors.Join(failed, err)
	}
	return (&net.ListenConfig{Control: set}).Listen(context.Background(), "tcp", listen)
}

// Terminates TLS. The files are read for each connection, as with vLLM's --enable-ssl-refresh.
func terminate(listener net.Listener, certificate, key string) (net.Listener, error) {
	read := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		return &pair, err
	}
	if _, err := read(nil); err != nil {
		return nil, err
	}
	return tls.NewListener(listener, &tls.Config{GetCertificate: read, NextProtos: []string{"http/1.1"}}), nil
}

func forward(listener net.Listener, to string) error {
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, client)
				if half, ok := server.(*net.TCPConn); ok {
					_ = half.CloseWrite()
				}
			}()
			_, _ = io.Copy(client, server)
		}()
	}
}

func replace(words []string) error { return syscall.Exec(words[0], words, os.Environ()) }

func main() {
	arguments := os.Args[1:]
	isProxy := len(arguments) > 0 && arguments[0] == "proxy"
	server, err := parse(arguments)
	switch {
	case err != nil:
	case isProxy:
		var listener net.Listener
		if listener, err = net.Listen("tcp", ":"+server.values["--port"]); err == nil {
			err = forward(listener, "127.0.0.1:"+server.values["--vllm-port"])
		}
	default:
		err = server.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vllm:", err)
		os.Exit(1)
	}
}
