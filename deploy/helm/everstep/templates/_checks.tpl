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
{{- /* Numbers of files are floats: 1.10 is 1.1, and of 17 digits the last ones change. */ -}}
{{- $versions := dict "image.tag" $v.image.tag "worker.buildId" $v.worker.buildId -}}
{{- range $index, $build := $v.worker.previousBuilds -}}
{{- range $key := list "buildId" "tag" -}}
{{- $_ := set $versions (printf "worker.previousBuilds[%d].%s" $index $key) (get $build $key) -}}
{{- end -}}
{{- end -}}
{{- range $name, $version := $versions -}}
{{- if kindIs "float64" $version -}}
{{- $faults = append $faults (printf "%s is a number, of which YAML drops digits, as of 1.10: put it into quotes, or use --set-string." $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.worker.previousBuilds (not $v.worker.buildId) -}}
{{- $faults = append $faults "worker.previousBuilds is set without worker.buildId: name the build of image.tag as well." -}}
{{- end -}}
{{- $ids := list (include "everstep.text" $v.worker.buildId) -}}
{{- range $v.worker.previousBuilds -}}
{{- if has (include "everstep.text" .buildId) $ids -}}
{{- $faults = append $faults (printf "the build %s is named twice in worker.buildId and worker.previousBuilds: name each build once." (include "everstep.text" .buildId)) -}}
{{- end -}}
{{- $ids = append $ids (include "everstep.text" .buildId) -}}
{{- if not (or .tag .digest) -}}
{{- $faults = append $faults (printf "the build %s of worker.previousBuilds has neither a tag nor a digest: name the image that it ran." (include "everstep.text" .buildId)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.worker.buildId (lt (int $v.worker.replicas) 1) (eq $v.worker.autoscaling.kind "none") -}}
{{- $faults = append $faults "worker.replicas is 0 and worker.buildId is set: Temporal makes a build current only if a worker of it runs." -}}
{{- end -}}
{{- /* A variable may have the prefix or not, and its value may be in a file. */ -}}
{{- $own := list "TEMPORAL_ADDRESS" "TEMPORAL_NAMESPACE" "TASK_QUEUE" "TEMPORAL_TLS" "AGENTS" "ALLOWED_HOSTS" "ALLOWED_ORIGINS" "PUBLIC_URL" "GATEWAY_URL" "HTTP_HOST" "HTTP_PORT" "GATEWAY_HOST" "GATEWAY_PORT" "GATEWAY_LINK_HOST" "GATEWAY_LINK_PORT" "GATEWAY_DRAIN_SECONDS" "BUILD_ID" "GRACEFUL_SHUTDOWN_SECONDS" "METRICS_HOST" "METRICS_PORT" "BUS" "NATS_URL" "NATS_CREDENTIALS" "FORWARDED_ALLOW_IPS" "POD_IP" -}}
{{- $secret := list -}}
{{- range concat $v.secrets.variables $v.workerSecrets.variables -}}{{ $secret = append $secret (trimPrefix "EVERSTEP_" .) }}{{- end -}}
{{- range $place, $env := dict "env" $v.env "worker.env" $v.worker.env "api.env" $v.api.env "gateway.env" $v.gateway.env -}}
{{- range $name, $value := $env -}}
{{- $setting := $name | trimPrefix "EVERSTEP_" | trimSuffix "_FILE" -}}
{{- if has $setting $own -}}
{{- $faults = append $faults (printf "%s sets %s, which the chart sets from another value: see values.yaml." $place $name) -}}
{{- end -}}
{{- if has $setting $secret -}}
{{- $faults = append $faults (printf "%s sets %s, which is in a Secret as well: set one of them." $place $name) -}}
{{- end -}}
{{- if and (kindIs "float64" $value) (gt $value 9007199254740991.0) -}}
{{- $faults = append $faults (printf "%s sets %s to a number of which YAML drops digits: put it into quotes." $place $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if contains "://" $v.temporal.address -}}
{{- $faults = append $faults "temporal.address is a URL: name the host and the port only, such as temporal-frontend.temporal:7233; temporal.tls switches TLS on." -}}
{{- end -}}
{{- $fullname := include "everstep.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) -}}
{{- $faults = append $faults (printf "the objects would be named %s...: set fullnameOverride to lower-case letters, digits and hyphens, beginning with a letter." $fullname) -}}
{{- end -}}
{{- if not (regexMatch "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$" (include "everstep.name" .)) -}}
{{- $faults = append $faults "nameOverride is no label of Kubernetes: use letters, digits, hyphens, dots and underscores." -}}
{{- end -}}
{{- $names := dict "secrets.name" $v.secrets.name "workerSecrets.name" $v.workerSecrets.name "ingress.apiTlsSecret" $v.ingress.apiTlsSecret "ingress.gatewayTlsSecret" $v.ingress.gatewayTlsSecret "ingress.className" $v.ingress.className "serviceAccount.name" $v.serviceAccount.name "worker.workspace.claim" $v.worker.workspace.claim "image.pullSecrets" (join "." $v.image.pullSecrets) -}}
{{- range $place, $name := $names -}}
{{- if and $name (not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" $name)) -}}
{{- $faults = append $faults (printf "%s is '%s', which Kubernetes refuses as a name: use lower-case letters, digits, hyphens and dots." $place $name) -}}
{{- end -}}
{{- end -}}
{{- range $place, $scaling := dict "worker.autoscaling" $v.worker.autoscaling "api.autoscaling" $v.api.autoscaling "gateway.autoscaling" $v.gateway.autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- $faults = append $faults (printf "%s.minReplicas is %d and maxReplicas %d: the first may not be larger." $place (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.retention.enabled (not (regexMatch (include "everstep.cronPattern" .) $v.retention.schedule)) -}}
{{- $faults = append $faults (printf "retention.schedule is '%s', which is no schedule of cron: write minute, hour, day, month and weekday, such as 17 3 * * *, or @daily." $v.retention.schedule) -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n\n%s\n" (join "\n" $faults)) -}}
{{- end -}}
{{- end -}}
{{- /* Of the five fields of a schedule, or of its short forms. */ -}}
{{- define "everstep.cronPattern" -}}
{{- $fields := list "[0-5]?[0-9]" "([01]?[0-9]|2[0-3])" "(0?[1-9]|[12][0-9]|3[01])" "(0?[1-9]|1[0-2]|(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))" "([0-6]|(?i:sun|mon|tue|wed|thu|fri|sat))" -}}
{{- $patterns := list -}}
{{- range $fields -}}
{{- $item := printf "([*?]|%s(-%s)?)(/[1-9][0-9]*)?" . . -}}
{{- $patterns = append $patterns (printf "%s(,%s)*" $item $item) -}}
{{- end -}}
^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|@every [0-9hms.]+|{{ join " +" $patterns }})$
{{- end -}}
