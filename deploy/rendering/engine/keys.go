package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
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

// certificate is what Sprig's functions give and take; of elliptic curves here, which are made faster than its RSA keys.
type certificate struct {
	Cert, Key string
}

func genCA(name string, days int) (certificate, error) {
	made := forDays(name, days)
	made.IsCA, made.BasicConstraintsValid, made.KeyUsage = true, true, x509.KeyUsageCertSign
	return signed(made, nil, nil)
}

// genSignedCert knows names of no address alone.
func genSignedCert(name string, _, names []any, days int, ca certificate) (certificate, error) {
	authority, key, err := parsed(ca)
	if err != nil {
		return certificate{}, err
	}
	made := forDays(name, days)
	made.KeyUsage, made.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, each := range names {
		made.DNSNames = append(made.DNSNames, each.(string))
	}
	return signed(made, authority, key)
}

// buildCustomCert takes base64 of both, as Secrets have it.
func buildCustomCert(cert, key string) (certificate, error) {
	one, err := b64dec(cert)
	if err != nil {
		return certificate{}, err
	}
	other, err := b64dec(key)
	return certificate{one, other}, err
}

func forDays(name string, days int) x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now(),
		NotAfter:     time.Now().Add(time.Hour * 24 * time.Duration(days)),
	}
}

func signed(made x509.Certificate, authority *x509.Certificate, by crypto.PrivateKey) (certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{}, err
	}
	if authority == nil {
		authority, by = &made, key
	}
	der, err := x509.CreateCertificate(rand.Reader, &made, authority, key.Public(), by)
	if err != nil {
		return certificate{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	return certificate{toPEM("CERTIFICATE", der), toPEM("PRIVATE KEY", private)}, err
}

func parsed(ca certificate) (*x509.Certificate, crypto.PrivateKey, error) {
	cert, _ := pem.Decode([]byte(ca.Cert))
	key, _ := pem.Decode([]byte(ca.Key))
	if cert == nil || key == nil {
		return nil, nil, errors.New("genSignedCert: no PEM data")
	}
	authority, err := x509.ParseCertificate(cert.Bytes)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	return authority, private, err
}

func toPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
