package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// functions are those of Helm and Sprig that the chart uses, with their meaning there.
func functions(root *template.Template, cluster []map[string]any) template.FuncMap {
	return template.FuncMap{
		"include": func(name string, context any) (string, error) {
			var text strings.Builder
			err := root.ExecuteTemplate(&text, name, context)
			return text.String(), err
		},
		"lookup": func(version, kind, namespace, name string) map[string]any {
			for _, each := range cluster {
				meta, _ := each["metadata"].(map[string]any)
				if each["apiVersion"] == version && each["kind"] == kind && meta["namespace"] == namespace && meta["name"] == name {
					return each
				}
			}
			return map[string]any{}
		},
		"fail":   func(why string) (string, error) { return "", errors.New(why) },

		"toYaml":     toYaml,
		"toJson":     toJson,
		"fromJson":   fromJson,
		"quote":      func(value any) string { return strconv.Quote(fmt.Sprint(value)) },
		"indent":     indent,
		"nindent":    func(spaces int, text string) string { return "\n" + indent(spaces, text) },
		"trim":       strings.TrimSpace,
		"contains":   func(part, text string) bool { return strings.Contains(text, part) },
		"replace":    func(old, new, text string) string { return strings.ReplaceAll(text, old, new) },
		"trimPrefix": func(prefix, text string) string { return strings.TrimPrefix(text, prefix) },
		"trimSuffix": func(suffix, text string) string { return strings.TrimSuffix(text, suffix) },
		"splitList":  func(separator, text string) []string { return strings.Split(text, separator) },
		"substr":     func(start, end int, text string) string { return text[start:end] },
		"regexFind": func(pattern, text string) (string, error) {
			compiled, err := regexp.Compile(pattern)
			if err != nil {
				return "", err
			}
			return compiled.FindString(text), nil
		},

		"default": func(otherwise, value any) any {
			if empty(value) {
				return otherwise
			}
			return value
		},
		"ternary": func(yes, no any, condition bool) any {
			if condition {
				return yes
			}
			return no
		},
		"int":  toInt,
		"has":  func(wanted any, among any) bool { return has(wanted, among) },
		"list": func(values ...any) []any { return values },
		"append": func(values []any, value any) []any {
			return append(append([]any{}, values...), value)
		},
		"dict":  dict,
		"get": func(of map[string]any, key string) any {
			if value, is := of[key]; is {
				return value
			}
			return ""
		},
		"hasKey": func(of map[string]any, key string) bool { _, is := of[key]; return is },
		"set":   func(of map[string]any, key string, value any) map[string]any { of[key] = value; return of },
		"merge": merge,
		"deepCopy": func(value map[string]any) (map[string]any, error) {
			text, err := toJson(value)
			if err != nil {
				return nil, err
			}
			return fromJson(text)
		},

		"b64dec":        b64dec,
		"b64enc":        func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
		"sha256sum":     func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
		"randAlphaNum":  randAlphaNum,
		"semverCompare": semverCompare,

		"now":       time.Now,
		"unixEpoch": func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) },
		"sub":       func(from, less any) int { return toInt(from) - toInt(less) },

		"genCA":                    genCA,
		"genSignedCert":            genSignedCert,
		"buildCustomCert":          buildCustomCert,
		"genPrivateKey":            genPrivateKey,
		"genSelfSignedCertWithKey": genSelfSignedCertWithKey,
	}
}

func toJson(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

func fromJson(text string) (map[string]any, error) {
	value := map[string]any{}
	err := json.Unmarshal([]byte(text), &value)
	return value, err
}

func indent(spaces int, text string) string {
	margin := strings.Repeat(" ", spaces)
	return margin + strings.ReplaceAll(text, "\n", "\n"+margin)
}

// empty is what templates take for false.
func empty(value any) bool {
	truth, _ := template.IsTrue(value)
	return !truth
}

func toInt(value any) int {
	number, _ := strconv.ParseFloat(fmt.Sprint(value), 64)
	return int(number)
}

func has(wanted, among any) bool {
	items := reflect.ValueOf(among)
	for i := 0; i < items.Len(); i++ {
		if reflect.DeepEqual(items.Index(i).Interface(), wanted) {
			return true
		}
	}
	return false
}

func dict(pairs ...any) map[string]any {
	made := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		made[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return made
}

// merge fills what the first has not, or empty, from the others, in depth; it changes the first, as in Sprig.
func merge(into map[string]any, others ...map[string]any) map[string]any {
	for _, other := range others {
		for key, value := range other {
			mine, bothMaps := into[key].(map[string]any)
			theirs, isMap := value.(map[string]any)
			switch {
			case bothMaps && isMap:
				merge(mine, theirs)
			case empty(into[key]):
				into[key] = value
			}
		}
	}
	return into
}

const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// randAlphaNum is for looks: no cluster is set up with what is rendered here.
func randAlphaNum(count int) string {
	var text strings.Builder
	for i := 0; i < count; i++ {
		text.WriteByte(alphanumeric[rand.Intn(len(alphanumeric))])
	}
	return text.String()
}

var atLeast = regexp.MustCompile(`^>=(\d+)\.(\d+)\.(\d+)-0$`)
var release = regexp.MustCompile(`^v?(\d+)\.(\d+)\.(\d+)`)

// semverCompare knows constraints of the form ">=1.30.0-0" alone: a release, or anything before or after it.
func semverCompare(constraint, version string) (bool, error) {
	wanted, found := atLeast.FindStringSubmatch(constraint), release.FindStringSubmatch(version)
	if wanted == nil || found == nil {
		return false, fmt.Errorf("semverCompare %q %q: expected >=X.Y.Z-0 and a version", constraint, version)
	}
	for i := 1; i <= 3; i++ {
		if toInt(found[i]) != toInt(wanted[i]) {
			return toInt(found[i]) > toInt(wanted[i]), nil
		}
	}
	return true, nil
}
