// Renders a Helm chart's templates by Go's own template engine, without a cluster.
//
// Standard input: JSON {"context": {Values, Chart, Release, Capabilities}, "templates": {path: text},
// "files": {path: text}, "cluster": [object, of what lookup finds], "apis": [group/version]}. Standard output: JSON {path: text} of the
// templates that are no partials. Exit status 1 with the reason on standard error. A template that uses a function which is not here is refused.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"
	"text/template"
)

type chart struct {
	Context   map[string]any    `json:"context"`
	Templates map[string]string `json:"templates"`
	Files     files             `json:"files"`
	Cluster   []map[string]any  `json:"cluster"`
	Apis      versions          `json:"apis"`
}

// versions are the groups and versions of the API that the cluster serves, as Helm's .Capabilities.APIVersions.
type versions []string

// Has is whether the cluster serves one.
func (v versions) Has(wanted string) bool {
	for _, served := range v {
		if served == wanted {
			return true
		}
	}
	return false
}

// files are those of the chart that are no templates, as Helm's .Files.
type files map[string]string

// Get is a file's text, empty for one that there is not, as in Helm.
func (f files) Get(name string) string { return f[name] }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var given chart
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		return err
	}
	rendered, err := render(given)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(rendered)
}

func render(given chart) (map[string]string, error) {
	root := template.New("chart").Option("missingkey=zero")
	root.Funcs(functions(root, given.Cluster))
	names := make([]string, 0, len(given.Templates))
	for name := range given.Templates {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if _, err := root.New(name).Parse(given.Templates[name]); err != nil {
			return nil, err
		}
	}
	given.Context["Files"] = given.Files
	if capabilities, is := given.Context["Capabilities"].(map[string]any); is {
		capabilities["APIVersions"] = given.Apis
	}
	rendered := map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(path.Base(name), "_") {
			continue
		}
		var text strings.Builder
		if err := root.ExecuteTemplate(&text, name, given.Context); err != nil {
			return nil, err
		}
		rendered[name] = strings.ReplaceAll(text.String(), "<no value>", "") // as Helm does
	}
	return rendered, nil
}
