// Ollama from its Go modules: the module of the program cannot be installed with `go install`, because it needs headers
// that its zip lacks (see ../fetch.sh).
package main

import (
	"context"
	"os"

	"github.com/ollama/ollama/cmd"
)

func main() {
	if cmd.NewCLI().ExecuteContext(context.Background()) != nil {
		os.Exit(1)
	}
}
