package main

import (
	"encoding/json"
	"regexp"
	"sort"
	"strings"
)

// plain are texts that no YAML reader takes for anything but themselves.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9/_.-]*(:[0-9]+)?$`)
var special = regexp.MustCompile(`^(?i:y|n|yes|no|on|off|true|false|null|nan|inf|infinity)$`)

// toYaml is a value as YAML in block style with sorted keys, without a newline at the end.
func toYaml(value any) (string, error) {
	var lines []string
	err := yamlLines(value, &lines)
	return strings.Join(lines, "\n"), err
}

// yamlLines appends a value's lines, which can stand by themselves.
func yamlLines(value any, lines *[]string) error {
	switch typed := value.(type) {
	case map[string]any:
		if len(typed) > 0 {
			return mapping(typed, lines)
		}
	case []any:
		if len(typed) > 0 {
			return sequence(typed, lines)
		}
	}
	text, err := scalar(value)
	*lines = append(*lines, text)
	return err
}

func mapping(of map[string]any, lines *[]string) error {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		name, err := scalar(key)
		if err != nil {
			return err
		}
		var inner []string
		if err := yamlLines(of[key], &inner); err != nil {
			return err
		}
		if !isBlock(of[key]) {
			*lines = append(*lines, name+": "+inner[0])
			continue
		}
		margin := "  "
		if _, isList := of[key].([]any); isList {
			margin = ""
		}
		*lines = append(*lines, name+":")
		for _, line := range inner {
			*lines = append(*lines, margin+line)
		}
	}
	return nil
}

func sequence(of []any, lines *[]string) error {
	for _, each := range of {
		var inner []string
		if err := yamlLines(each, &inner); err != nil {
			return err
		}
		*lines = append(*lines, "- "+inner[0])
		for _, line := range inner[1:] {
			*lines = append(*lines, "  "+line)
		}
	}
	return nil
}

func isBlock(value any) bool {
	switch typed := value.(type) {
	case map[string]any:
		return len(typed) > 0
	case []any:
		return len(typed) > 0
	}
	return false
}

// scalar is a text as it is where that is safe, and everything else as JSON, which is YAML.
func scalar(value any) (string, error) {
	if text, isText := value.(string); isText && plain.MatchString(text) && !special.MatchString(text) {
		return text, nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}
