// An OpenTelemetry Collector with only the components that the tests need: it receives OTLP and writes the data to a file, one
// JSON document per line. It also contains the components of the chart's gateway configuration.
package main

import (
	"os"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/healthcheckextension"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func components() (otelcol.Factories, error) {
	made := otelcol.Factories{Telemetry: otelconftelemetry.NewFactory()}
	var failed [4]error
	made.Extensions, failed[0] = otelcol.MakeFactoryMap[extension.Factory](healthcheckextension.NewFactory())
	made.Receivers, failed[1] = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	made.Processors, failed[2] = otelcol.MakeFactoryMap[processor.Factory](batchprocessor.NewFactory(), memorylimiterprocessor.NewFactory())
	made.Exporters, failed[3] = otelcol.MakeFactoryMap[exporter.Factory](debugexporter.NewFactory(), fileexporter.NewFactory(), otlphttpexporter.NewFactory())
	for _, err := range failed {
		if err != nil {
			return otelcol.Factories{}, err
		}
	}
	return made, nil
}

func main() {
	providers := []confmap.ProviderFactory{envprovider.NewFactory(), fileprovider.NewFactory()}
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo:              component.BuildInfo{Command: "collector", Description: "OpenTelemetry Collector", Version: "0.158.0"},
		Factories:              components,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{ProviderFactories: providers}},
	})
	if command.Execute() != nil {
		os.Exit(1)
	}
}
