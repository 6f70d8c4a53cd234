package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"time"
)

func b64dec(text string) (string, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	return string(data), err
}

// genPrivateKey knows Ed25519 alone, in PKCS #8 as Sprig has it.
func genPrivateKey(kind string) (string, error) {
	if kind != "ed25519" {
		return "", errors.New("genPrivateKey: only ed25519 is known here")
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return toPEM("PRIVATE KEY", der), err
}

// genSelfSignedCertWithKey knows names of no address and Ed25519 keys alone.
func genSelfSignedCertWithKey(name string, _, _ []any, days int, key string) (map[string]any, error) {
	block, _ := pem.Decode([]byte(key))
	if block == nil {
		return nil, errors.New("genSelfSignedCertWithKey: no PEM data")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	private, known := parsed.(ed25519.PrivateKey)
	if !known {
		return nil, errors.New("genSelfSignedCertWithKey: only ed25519 is known here")
	}
	made := x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now(),
		NotAfter:     time.Now().Add(time.Hour * 24 * time.Duration(days)),
	}
	der, err := x509.CreateCertificate(rand.Reader, &made, &made, private.Public(), private)
	return map[string]any{"Cert": toPEM("CERTIFICATE", der), "Key": key}, err
}

func toPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
