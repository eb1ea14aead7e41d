// Loads a compose file as `docker compose` does, with the variables of the environment and of .env, and prints
// the project as JSON.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func load(path string) ([]byte, error) {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithOsEnv, cli.WithDotEnv, cli.WithDefaultProfiles())
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}

func main() {
	text, err := load(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}
