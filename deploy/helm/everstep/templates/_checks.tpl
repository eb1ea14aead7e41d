{{/* Missing and contradictory values, one sentence each. */}}
{{- define "everstep.checks" -}}
{{- $faults := list -}}
{{- $v := .Values -}}
{{- if not $v.image.repository -}}
{{- $faults = append $faults "image.repository is not set: name the image that you built with your agents, such as registry.example.com/agents." -}}
{{- end -}}
{{- if not (or $v.image.tag $v.image.digest) -}}
{{- $faults = append $faults "image.tag is not set: name the version of the image, or its digest in image.digest." -}}
{{- end -}}
{{- if not $v.temporal.address -}}
{{- $faults = append $faults "temporal.address is not set: name the frontend of Temporal, such as temporal-frontend.temporal:7233." -}}
{{- end -}}
{{- if not $v.secrets.name -}}
{{- $faults = append $faults "secrets.name is not set: name the Secret that has DATABASE_URL and EVERSTEP_BROADCAST_SECRET." -}}
{{- end -}}
{{- if not (has "DATABASE_URL" $v.secrets.variables) -}}
{{- $faults = append $faults "secrets.variables lacks DATABASE_URL: every process needs the database." -}}
{{- end -}}
{{- if and $v.gateway.replicas (not (or (has "EVERSTEP_BROADCAST_SECRET" $v.secrets.variables) (has "EVERSTEP_AUTH_SECRET" $v.secrets.variables))) -}}
{{- $faults = append $faults "secrets.variables lacks EVERSTEP_BROADCAST_SECRET: gateways recognize workers and APIs by it; set gateway.replicas=0 to have none." -}}
{{- end -}}
{{- if and $v.workerSecrets.variables (not $v.workerSecrets.name) -}}
{{- $faults = append $faults "workerSecrets.name is not set: name the Secret that has the keys of workerSecrets.variables." -}}
{{- end -}}
{{- if and $v.hosts.api (eq $v.hosts.api $v.hosts.gateway) -}}
{{- $faults = append $faults "hosts.api and hosts.gateway are the same: both have addresses that begin with /v1, so give the gateway a name of its own." -}}
{{- end -}}
{{- if and (or $v.ingress.enabled $v.httpRoutes.enabled) (not $v.hosts.api) -}}
{{- $faults = append $faults "hosts.api is not set: the ingress needs the name under which people reach the API." -}}
{{- end -}}
{{- if and (or $v.ingress.enabled $v.httpRoutes.enabled) $v.gateway.replicas (not $v.hosts.gateway) -}}
{{- $faults = append $faults "hosts.gateway is not set: the ingress needs the name under which browsers reach the gateway; set gateway.replicas=0 to have none." -}}
{{- end -}}
{{- if and $v.httpRoutes.enabled (not $v.httpRoutes.parentRefs) -}}
{{- $faults = append $faults "httpRoutes.parentRefs is empty: name the Gateway that the routes belong to." -}}
{{- end -}}
{{- if $v.externalSecrets.enabled -}}
{{- if not $v.externalSecrets.storeRef.name -}}
{{- $faults = append $faults "externalSecrets.storeRef.name is not set: name the store from which the secrets come." -}}
{{- end -}}
{{- range concat (include "everstep.secretKeys" . | fromJsonArray) $v.workerSecrets.variables -}}
{{- if not (hasKey $v.externalSecrets.remoteKeys .) -}}
{{- $faults = append $faults (printf "externalSecrets.remoteKeys lacks %s: say which key of the store it is." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $hasSecretUrl := has "EVERSTEP_NATS_URL" $v.secrets.variables -}}
{{- if and $v.nats.enabled (not $v.nats.url) (not $hasSecretUrl) -}}
{{- $faults = append $faults "nats.url is not set: name a server of NATS, such as nats://nats.messaging:4222, or add EVERSTEP_NATS_URL to secrets.variables." -}}
{{- end -}}
{{- if and $v.nats.url $hasSecretUrl -}}
{{- $faults = append $faults "nats.url is set, and secrets.variables has EVERSTEP_NATS_URL as well: set one of them." -}}
{{- end -}}
{{- if contains "@" $v.nats.url -}}
{{- $faults = append $faults "nats.url has a user or a password: put it into the Secret as EVERSTEP_NATS_URL, and add that to secrets.variables." -}}
{{- end -}}
{{- if and (or $v.nats.url $v.nats.credentialsKey) (not $v.nats.enabled) -}}
{{- $faults = append $faults "nats.enabled is false and other values of nats are set: set it to true, or remove them." -}}
{{- end -}}
{{- if and (eq $v.worker.autoscaling.kind "keda") (not $v.worker.autoscaling.prometheusAddress) -}}
{{- $faults = append $faults "worker.autoscaling.prometheusAddress is not set: KEDA reads the queue's depth there, such as http://prometheus.monitoring:9090." -}}
{{- end -}}
{{- if and $v.worker.previousBuilds (not $v.worker.buildId) -}}
{{- $faults = append $faults "worker.previousBuilds is set without worker.buildId: name the build of image.tag as well." -}}
{{- end -}}
{{- $ids := list ($v.worker.buildId | toString) -}}
{{- range $v.worker.previousBuilds -}}
{{- if has (.buildId | toString) $ids -}}
{{- $faults = append $faults (printf "the build %s is named twice in worker.buildId and worker.previousBuilds: name each build once." (.buildId | toString)) -}}
{{- end -}}
{{- $ids = append $ids (.buildId | toString) -}}
{{- if not (or .tag .digest) -}}
{{- $faults = append $faults (printf "the build %s of worker.previousBuilds has neither a tag nor a digest: name the image that it ran." (.buildId | toString)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.worker.buildId (lt (int $v.worker.replicas) 1) (eq $v.worker.autoscaling.kind "none") -}}
{{- $faults = append $faults "worker.replicas is 0 and worker.buildId is set: Temporal makes a build current only if a worker of it runs." -}}
{{- end -}}
{{- $own := list "TEMPORAL_ADDRESS" "TEMPORAL_NAMESPACE" "EVERSTEP_TASK_QUEUE" "EVERSTEP_TEMPORAL_TLS" "EVERSTEP_AGENTS" "EVERSTEP_ALLOWED_HOSTS" "EVERSTEP_ALLOWED_ORIGINS" "EVERSTEP_PUBLIC_URL" "EVERSTEP_GATEWAY_URL" "EVERSTEP_HTTP_HOST" "EVERSTEP_HTTP_PORT" "EVERSTEP_GATEWAY_HOST" "EVERSTEP_GATEWAY_PORT" "EVERSTEP_GATEWAY_LINK_HOST" "EVERSTEP_GATEWAY_LINK_PORT" "EVERSTEP_GATEWAY_DRAIN_SECONDS" "EVERSTEP_BUILD_ID" "EVERSTEP_GRACEFUL_SHUTDOWN_SECONDS" "EVERSTEP_METRICS_HOST" "EVERSTEP_METRICS_PORT" "EVERSTEP_BUS" "EVERSTEP_NATS_URL" "EVERSTEP_NATS_CREDENTIALS" "FORWARDED_ALLOW_IPS" -}}
{{- range $place, $env := dict "env" $v.env "worker.env" $v.worker.env "api.env" $v.api.env "gateway.env" $v.gateway.env -}}
{{- range $name, $_ := $env -}}
{{- if has $name $own -}}
{{- $faults = append $faults (printf "%s sets %s, which the chart sets from another value: see values.yaml." $place $name) -}}
{{- end -}}
{{- if has $name (concat $v.secrets.variables $v.workerSecrets.variables) -}}
{{- $faults = append $faults (printf "%s sets %s, which is in a Secret as well: set one of them." $place $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n\n%s\n" (join "\n" $faults)) -}}
{{- end -}}
{{- end -}}
