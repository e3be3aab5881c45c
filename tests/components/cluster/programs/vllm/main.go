// A server that is told what it does in vLLM's words, and is the project's simulator: `vllm serve MODEL [--host=HOST]
// [--port=PORT] [--uds=PATH]`, and any flag of `tokometer sim` besides. It becomes that program, so what is sent to it reaches the simulator.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

const simulator = "/tokometer"

// Arguments of the simulator that say what these of vLLM do.
func translated(given []string) ([]string, error) {
	if len(given) > 0 && given[0] == "serve" {
		given = given[1:]
	}
	model, host, port, socket := "sim", "", "8000", ""
	var rest []string
	for len(given) > 0 {
		word := given[0]
		given = given[1:]
		name, value, joined := strings.Cut(word, "=")
		if name != "--host" && name != "--port" && name != "--uds" && name != "--model" {
			// As of vLLM's, the first word that is no flag's is the model.
			if !strings.HasPrefix(word, "-") && len(rest) == 0 {
				model = word
			} else {
				rest = append(rest, word)
			}
			continue
		}
		if !joined {
			if len(given) == 0 {
				return nil, fmt.Errorf("%s needs a value", name)
			}
			value, given = given[0], given[1:]
		}
		switch name {
		case "--host":
			host = value
		case "--port":
			port = value
		case "--uds":
			socket = value
		case "--model":
			model = value
		}
	}
	listen := net.JoinHostPort(host, port)
	if socket != "" {
		listen = "unix:" + socket
	}
	return append([]string{simulator, "sim", "--listen", listen, "--model", model}, rest...), nil
}

func main() {
	arguments, err := translated(os.Args[1:])
	if err == nil {
		err = syscall.Exec(simulator, arguments, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "vllm:", err)
	os.Exit(1)
}
