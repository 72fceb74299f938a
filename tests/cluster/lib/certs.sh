# shellcheck shell=bash
# The cluster's certificates: one authority, a serving certificate for each server, and a client certificate in
# a kubeconfig for each component. Made anew for each cluster, valid for as long as anybody would keep one.

PKI_DAYS=30

pki() { printf '%s/pki/%s\n' "$STATE" "$1"; }

# key FILE: elliptic keys are made in milliseconds.
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>>"$STATE/log/certs.log"; }

# certificate NAME SUBJECT EXTENSIONS: signed by the cluster's authority.
certificate() {
  key "$(pki "$1.key")"
  openssl req -new -key "$(pki "$1.key")" -subj "$2" |
    openssl x509 -req -CA "$(pki ca.crt)" -CAkey "$(pki ca.key)" -set_serial "0x$(openssl rand -hex 8)" \
      -days "$PKI_DAYS" -extfile <(printf '%s\n' 'basicConstraints=critical,CA:FALSE' \
        'keyUsage=critical,digitalSignature' "$3") -out "$(pki "$1.crt")" 2>>"$STATE/log/certs.log"
}

server_certificate() { certificate "$1" "$2" "$(printf 'extendedKeyUsage=serverAuth\nsubjectAltName=%s' "$3")"; }

# client NAME SUBJECT: a certificate and the kubeconfig that carries it.
client() {
  certificate "$1" "$2" 'extendedKeyUsage=clientAuth'
  kubeconfig "$1" >"$STATE/$1.kubeconfig"
}

kubeconfig() {
  cat <<YAML
apiVersion: v1
kind: Config
current-context: $NAME
contexts: [{name: $NAME, context: {cluster: $NAME, user: $1}}]
clusters:
- name: $NAME
  cluster:
    server: $API_URL
    certificate-authority-data: $(base64 -w0 "$(pki ca.crt)")
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$(pki "$1.crt")")
    client-key-data: $(base64 -w0 "$(pki "$1.key")")
YAML
}

certs_create() {
  local component pids=() pid
  mkdir -p "$STATE/pki"
  chmod 700 "$STATE/pki"
  key "$(pki ca.key)"
  # Without keyUsage and an authority apart from the leaf, strict clients (rustls) refuse the chain.
  openssl req -x509 -new -key "$(pki ca.key)" -subj "/CN=$NAME-ca" -days "$PKI_DAYS" \
    -addext 'keyUsage=critical,keyCertSign,cRLSign' -out "$(pki ca.crt)"
  key "$(pki sa.key)"
  openssl pkey -in "$(pki sa.key)" -pubout -out "$(pki sa.pub)"
  # One after the other these take most of a second.
  server_certificate apiserver /CN=kube-apiserver "DNS:kubernetes,DNS:kubernetes.default,\
DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,\
IP:10.96.0.1,IP:$NODE_IP,IP:127.0.0.1" &
  pids+=($!)
  server_certificate kubelet-server "/O=system:nodes/CN=system:node:$NODE_NAME" \
    "DNS:$NODE_NAME,IP:$NODE_IP,IP:127.0.0.1" &
  pids+=($!)
  # The API server's own name at kubelet ("kubectl logs"); RBAC knows the group.
  client apiserver-kubelet /O=system:masters/CN=kube-apiserver &
  pids+=($!)
  client admin /O=system:masters/CN=admin &
  pids+=($!)
  client kubelet "/O=system:nodes/CN=system:node:$NODE_NAME" &
  pids+=($!)
  # kwok plays kubelet for nodes of any name, which the node authorizer would refuse.
  client kwok /O=system:masters/CN=kwok &
  pids+=($!)
  for component in kube-controller-manager kube-scheduler kube-proxy; do
    client "$component" "/CN=system:$component" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || return 1
  done
}
